"""The origin of a SuperNet, stored beside it: its network, and the source and the loading of the network's weights.

The origin names runs that adapt the SuperNet, and is shown in model cards.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tasks.base.errors import UserError
from tasks.base.schemas.stored import Stored
from tasks.evaluation.models.settings import ModelSettings

if TYPE_CHECKING:
    from timm.models import PretrainedCfg
    from torch import nn


def needs_training(settings: ModelSettings, classes: int) -> bool:
    """Whether the network has no weights for these classes, so that the base stage must train it."""
    if settings.kind == "onnx" or settings.checkpoint is not None or settings.trained:
        return False
    if settings.pretrained:
        config = _published(settings)
        return config is None or config.num_classes != classes
    return True


def _published(settings: ModelSettings) -> PretrainedCfg | None:
    """timm's facts about published weights of the network; None if it uses none. Importing timm takes seconds."""
    if not settings.pretrained:
        return None
    import timm

    return timm.get_pretrained_cfg(settings.name)


def load_part(model: nn.Module, path: Path, part: str) -> None:
    """Load the tensors of one part from a .safetensors file of another network that has the same part.

    part: the path of a module in both. UserError when a tensor of the part is only in one of the two, or its shapes differ.
    """
    from safetensors.torch import load_file  # torch takes seconds

    own, given = (
        {name: tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}
        for tensors in (model.state_dict(), load_file(path))
    )
    for name in sorted(own.keys() | given.keys()):
        shapes = [tuple(tensors[name].shape) if name in tensors else None for tensors in (own, given)]
        if shapes[0] != shapes[1]:
            got = f"'{name}' has shape {shapes[0]} in the network and {shapes[1]} in '{path}'"
            raise UserError(f"part '{part}'", got, allowed="the same part in both")
    model.load_state_dict(given, strict=False)


def weights_source(settings: ModelSettings) -> dict[str, str]:
    """For model cards: the network's name, the source of its first weights, and their licence if known."""
    known = {"name": settings.name, "licence": "unknown"}
    if settings.checkpoint is not None:
        return {**known, "weights": f"checkpoint {settings.checkpoint.name}"}
    if settings.kind == "onnx":
        return {**known, "weights": f"those of {settings.path.name if settings.path else settings.name}"}
    if settings.kind == "callable":
        return {**known, "weights": f"those that {settings.name} gives it"}
    config = _published(settings)
    if config is None:
        return {**known, "weights": "random, trained from there", "licence": "none: trained here"}
    source = config.hf_hub_id or config.url or "timm"
    return {**known, "weights": f"published: {source}", "licence": config.license or "unknown"}


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
