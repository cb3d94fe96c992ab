"""Images of unusual brightness or contrast are brought back to what is usual, each by itself, in front of a network.

Legend: B batch, C channels, H height, W width.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import torch
from torch import nn

from tailor_ir.errors import InputError

FEWEST = 2
"""Source images that tell what is usual."""
SMALLEST_DEVIATION = 1e-6
PREFIX = "input."
"""Of the names of its tensors among a SubNet's own ones, and in side files."""
TENSORS = ("deviations", "mean_C", "mean_spread_C", "log_C", "log_spread_C")


class InputAlignment(nn.Module):
    """Brings the mean and the deviation of each channel of an image to within `deviations` of what is usual.

    mean_C: of the means of source images; mean_spread_C: their deviation. log_C, log_spread_C: the same of the logarithms of
    the images' deviations. What is beyond `deviations` times the spread is taken off; an image within it stays, bit by bit. So
    light, contrast and haze, which change all pixels alike, are undone before the first layer, for any network, without
    a batch and without a step. Normalising each image by its own mean and contrast is old (Pizer et al., Computer Vision,
    Graphics, and Image Processing 1987); here only unusual ones change, so that usual images keep their light.

    Torch and exported files compute one formula, by operators that every runtime has.
    """

    deviations: torch.Tensor
    mean_C: torch.Tensor
    mean_spread_C: torch.Tensor
    log_C: torch.Tensor
    log_spread_C: torch.Tensor

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """tensors: by `TENSORS`."""
        super().__init__()
        for name in TENSORS:
            self.register_buffer(name, tensors[name])

    @classmethod
    def of(cls, batches: Sequence[torch.Tensor], deviations: float) -> "InputAlignment":
        """Learned from source images (B, C, H, W). InputError for fewer than two."""
        count = sum(map(len, batches))
        if count < FEWEST:
            raise InputError(f"source images: {count}; allowed: {FEWEST} or more; give images like those of training")
        mean_BC, log_BC = (torch.cat(parts).flatten(1) for parts in zip(*(_light(x)[1:] for x in batches), strict=True))
        found = (torch.tensor(deviations), mean_BC.mean(0), mean_BC.std(0), log_BC.mean(0), log_BC.std(0))
        return cls(dict(zip(TENSORS, found, strict=True)))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The images, within what is usual."""
        aligned_BCHW: torch.Tensor = self._aligned(x_BCHW)
        return aligned_BCHW

    def nodes(self, x_BCHW: gs.Tensor, aligned_BCHW: gs.Tensor) -> list[gs.Node]:
        """The ONNX nodes (opset 17) that compute the second from the first."""
        made: list[gs.Node] = []
        self._aligned(_OnnxValue(x_BCHW, made))
        made[-1].outputs = [aligned_BCHW]
        return made

    def _aligned(self, x: Any) -> Any:
        """x: images as a tensor, or as a value of an ONNX model."""
        away, mean, log = _light(x)
        lower, upper = self._limits(self.mean_C, self.mean_spread_C)
        lighter = (mean - upper).relu() - (lower - mean).relu()
        lower, upper = self._limits(self.log_C, self.log_spread_C)
        gain = ((lower - log).relu() - (log - upper).relu()).exp()
        return x + (gain - 1.0) * away - lighter

    def _limits(self, usual_C: torch.Tensor, spread_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The least and the largest that is usual (1, C, 1, 1)."""
        slack_C = self.deviations * spread_C
        return (usual_C - slack_C)[None, :, None, None], (usual_C + slack_C)[None, :, None, None]

    def tensors(self) -> dict[str, torch.Tensor]:
        """By their names among a SubNet's own ones."""
        return {f"{PREFIX}{name}": getattr(self, name) for name in TENSORS}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> "InputAlignment | None":
        """Of a SubNet's own tensors; None where those of an alignment are not all there."""
        names = {name: f"{PREFIX}{name}" for name in TENSORS}
        if not all(name in tensors for name in names.values()):
            return None
        return cls({name: tensors[own].detach().clone() for name, own in names.items()})


def _light(x: Any) -> tuple[Any, Any, Any]:
    """Differences from the mean (B, C, H, W) of each channel, this mean, and the logarithm of the deviation (B, C, 1, 1)."""
    mean, pixels = _mean(x), prod(x.shape[2:])
    away = x - mean
    deviation = (_mean(away * away) * (pixels / (pixels - 1))).sqrt()
    return away, mean, ((deviation - SMALLEST_DEVIATION).relu() + SMALLEST_DEVIATION).log()


def _mean(x: Any) -> Any:
    """Of each channel (B, C, 1, 1): first of rows, since some runtimes add one pixel after another."""
    return x.mean(3, keepdim=True).mean(2, keepdim=True)


class _OnnxValue:
    """A value of an ONNX model that is computed with as with a tensor, which writes nodes into `made`."""

    def __init__(self, tensor: gs.Tensor, made: list[gs.Node]) -> None:
        self._tensor, self._made, self.shape = tensor, made, tensor.shape

    def _follow(self, op: str, *operands: Any, **attributes: Any) -> "_OnnxValue":
        place = f"alignment/{len(self._made)}"
        inputs = [
            one._tensor
            if isinstance(one, _OnnxValue)
            else gs.Constant(f"{place}/input{at}", torch.as_tensor(one).detach().cpu().numpy().astype(np.float32))
            for at, one in enumerate(operands)
        ]
        result = gs.Variable(place, np.float32)
        self._made.append(gs.Node(op, place, attrs=attributes, inputs=inputs, outputs=[result]))
        return _OnnxValue(result, self._made)

    def mean(self, axis: int, *, keepdim: bool) -> "_OnnxValue":
        return self._follow("ReduceMean", self, axes=[axis], keepdims=int(keepdim))

    def __add__(self, other: Any) -> "_OnnxValue":
        return self._follow("Add", self, other)

    def __sub__(self, other: Any) -> "_OnnxValue":
        return self._follow("Sub", self, other)

    def __rsub__(self, other: Any) -> "_OnnxValue":
        return self._follow("Sub", other, self)

    def __mul__(self, other: Any) -> "_OnnxValue":
        return self._follow("Mul", self, other)

    def relu(self) -> "_OnnxValue":
        return self._follow("Relu", self)

    def sqrt(self) -> "_OnnxValue":
        return self._follow("Sqrt", self)

    def log(self) -> "_OnnxValue":
        return self._follow("Log", self)

    def exp(self) -> "_OnnxValue":
        return self._follow("Exp", self)
