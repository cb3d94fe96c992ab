"""The network that a SuperNet was made of, beside it: how runs that adapt it are called, and what their cards name."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

from tasks.errors import UserError
from tasks.models.settings import ModelSettings
from tasks.models.weights import weights_source
from tasks.schemas.stored import Stored

NETWORK_FILE = "network.json"


class NetworkOrigin(Stored):
    """`weights`: where its first weights came from."""

    STAGE: ClassVar[str] = "compile"

    name: str
    weights: str
    licence: str

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """The first files said no version."""
        return {"version": 1, **content}


def remember_origin(settings: ModelSettings, supernet: Path) -> None:
    """Write into a SuperNet's folder which network it was made of."""
    NetworkOrigin(**weights_source(settings)).write(supernet / NETWORK_FILE)


def carry_origin(supernet: Path, trained: Path) -> None:
    """The same network, in the folder of the trained SuperNet."""
    if (supernet / NETWORK_FILE).is_file():
        shutil.copyfile(supernet / NETWORK_FILE, trained / NETWORK_FILE)


def origin_of(supernet: Path) -> NetworkOrigin:
    """The network of a SuperNet.

    It is called by its folder where nobody wrote it, or what was written cannot be read: nothing is computed from it.
    """
    try:
        return NetworkOrigin.read(supernet / NETWORK_FILE)
    except UserError:
        return NetworkOrigin(name=supernet.resolve().name, weights="those of the SuperNet", licence="unknown")
