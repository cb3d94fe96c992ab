"""Weights of a network: whether it has any, their source, and loading."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.base.errors import UserError
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
    from tasks.evaluation.models.timm_networks import published_config

    return published_config(settings)


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
