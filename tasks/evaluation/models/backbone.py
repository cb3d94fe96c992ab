"""The backbone of a network as a classifier: its feature maps averaged over positions, and a linear layer on all averages.

Modules and tensors of the backbone keep their names of the whole network, so that tensors can be matched by name. Legend:
B batch, C channels, H height, W width, K classes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tasks.base.errors import UserError
from tasks.data.samples import SampleForm
from tasks.evaluation.models.tracebacks import told

CLASSIFIER = "classifier"
"""Name of the linear layer."""


class _Outer(nn.Module):
    """A module with one inner module under its name of the whole network; its output is the inner module's."""

    def __init__(self, name: str, inner: nn.Module) -> None:
        super().__init__()
        self.add_module(name, inner)

    def forward(self, x_BCHW: torch.Tensor) -> Any:
        (inner,) = self.children()
        return inner(x_BCHW)


class BackboneClassifier(nn.Module):
    """(B, C, H, W) images -> (B, K) logits."""

    def __init__(self, backbone: nn.Module, path: Sequence[str], widths: Sequence[int], classes: int) -> None:
        super().__init__()
        for name in reversed(path[1:]):
            backbone = _Outer(name, backbone)
        self._first = path[0]
        self.add_module(path[0], backbone)
        self.add_module(CLASSIFIER, nn.Linear(sum(widths), classes))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The logits (B, K)."""
        maps = maps_of(self.get_submodule(self._first)(x_BCHW))
        logits_BK: torch.Tensor = self.get_submodule(CLASSIFIER)(torch.cat([one.mean((2, 3)) for one in maps], 1))
        return logits_BK


def maps_of(answer: Any) -> list[torch.Tensor]:
    """The feature maps of a backbone's output: a tensor, a sequence, or a mapping by name."""
    if isinstance(answer, torch.Tensor):
        return [answer]
    return list(answer.values() if isinstance(answer, Mapping) else answer)


def classifier_of(whole: nn.Module, path: str, where: str, classes: int, form: SampleForm) -> BackboneClassifier:
    """A classifier from a part of a network, for images of a form. where: the network, for messages.

    UserError: the part does not exist, or does not give feature maps (B, C, H, W).
    """
    try:
        backbone = whole.get_submodule(path)
    except AttributeError as error:
        parts = ", ".join(name for name, _ in whole.named_children())
        raise UserError(where, f"has no part '{path}'", allowed=f"{parts}, or a part of these") from error
    where = f"{where}, part '{path}'"
    backbone.eval()
    try:
        with torch.no_grad():
            maps = maps_of(backbone(form.last_words(1)))
    except Exception as error:
        raise UserError(
            where,
            f"cannot run on images alone: {told(error, None)}",
            allowed="a part that takes the network's images",
        ) from error
    backbone.train()
    if not maps or not all(isinstance(one, torch.Tensor) and one.ndim == 4 for one in maps):
        raise UserError(where, "gives something else than feature maps", allowed="tensors (B, C, H, W)")
    return BackboneClassifier(backbone, path.split("."), [one.shape[1] for one in maps], classes)
