"""The network from which a SuperNet was made, stored beside it: used to name runs that adapt it, and for model cards."""

import shutil
from pathlib import Path
from typing import Any, ClassVar

from tasks.base.errors import UserError
from tasks.base.schemas.stored import Stored
from tasks.evaluation.models.settings import ModelSettings
from tasks.evaluation.models.weights import weights_source

NETWORK_FILE = "network.json"


class NetworkOrigin(Stored):
    """The network of a SuperNet. `weights`: source of its first weights."""

    STAGE: ClassVar[str] = "compile"

    name: str
    weights: str
    licence: str

    @classmethod
    def renewed(cls, content: dict[str, Any]) -> dict[str, Any]:
        """The content with a version: the first files had none."""
        return {"version": 1, **content}


def remember_origin(settings: ModelSettings, supernet: Path) -> None:
    """Write the network from which a SuperNet was made into its folder."""
    NetworkOrigin(**weights_source(settings)).write(supernet / NETWORK_FILE)


def carry_origin(supernet: Path, trained: Path) -> None:
    """Copy the file of the network to the folder of the trained SuperNet."""
    if (supernet / NETWORK_FILE).is_file():
        shutil.copyfile(supernet / NETWORK_FILE, trained / NETWORK_FILE)


def origin_of(supernet: Path) -> NetworkOrigin:
    """The network of a SuperNet.

    If the file is missing or unreadable, the folder's name is used: no result depends on it.
    """
    try:
        return NetworkOrigin.read(supernet / NETWORK_FILE)
    except UserError:
        return NetworkOrigin(name=supernet.resolve().name, weights="those of the SuperNet", licence="unknown")
