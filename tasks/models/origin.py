"""The network that a SuperNet was made of, beside it: how runs that adapt it are called, and what their cards name."""

import shutil
from pathlib import Path

from pydantic import ValidationError

from tasks.artifacts import write_bytes
from tasks.models.settings import ModelSettings
from tasks.models.weights import weights_source
from tasks.schemas.stored import Record

NETWORK_FILE = "network.json"


class NetworkOrigin(Record):
    """`weights`: where its first weights came from."""

    name: str
    weights: str
    licence: str


def remember_origin(settings: ModelSettings, supernet: Path) -> None:
    """Write into a SuperNet's folder which network it was made of."""
    origin = NetworkOrigin(**weights_source(settings))
    write_bytes(supernet / NETWORK_FILE, (origin.model_dump_json(indent=1) + "\n").encode())


def carry_origin(supernet: Path, trained: Path) -> None:
    """The same network, in the folder of the trained SuperNet."""
    if (supernet / NETWORK_FILE).is_file():
        shutil.copyfile(supernet / NETWORK_FILE, trained / NETWORK_FILE)


def origin_of(supernet: Path) -> NetworkOrigin:
    """The network of a SuperNet.

    It is called by its folder where nobody wrote it, or what was written cannot be read: nothing is computed from it.
    """
    try:
        return NetworkOrigin.model_validate_json((supernet / NETWORK_FILE).read_bytes())
    except (OSError, ValidationError):
        return NetworkOrigin(name=supernet.resolve().name, weights="those of the SuperNet", licence="unknown")
