"""Alignment of inputs: images of unusual brightness, contrast or sharpness are moved into the usual range, each by itself.

Legend: B batch, C channels, H height, W width, S scales (details, and everything coarser).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx_graphsurgeon as gs
import torch
from torch import nn
from torch.nn import functional

from tailor_ir.errors import InputError

FEWEST = 2
"""Minimum number of source images from which the usual range is learned."""
SMALLEST_DEVIATION = 1e-6
PREFIX = "input."
"""Prefix of the names of the alignment's tensors among a SubNet's own tensors, and in side files."""
TENSORS = ("deviations", "mean_C", "mean_spread_C", "log_SC", "log_spread_SC")
ONE_SCALE = {"log_SC": "log_C", "log_spread_SC": "log_spread_C"}
"""Present name -> the name in side files of versions before 0.12.0, which have no separate scale for details."""
NODES = "alignment/"
"""Prefix of the names of the alignment's nodes in files."""
WINDOW = 3
"""Side of the square [pixels] whose mean is the coarse part of an image; the rest is details."""


class InputAlignment(nn.Module):
    """Moves mean, contrast and details of each channel of an image to within `deviations` of the usual values.

    The details of a pixel are its difference from the mean of its neighbourhood; the image of these means carries the contrast.
    mean_C: mean of the source images' means; mean_spread_C: their standard deviation. log_SC, log_spread_SC: the same for the
    logarithms of the standard deviations of details and of the coarse part. The excess beyond `deviations` times the spread is
    removed; an image within the range stays unchanged, bit by bit. This undoes light, contrast and haze, which change all
    pixels alike, before the first layer, and most of blur (too few details) and noise (too many): for any network, without a
    batch and without a training step. Normalising each image by its own mean and contrast is old (Pizer et al., Computer
    Vision, Graphics, and Image Processing 1987), as is changing the contrast of single scales (Laplacian pyramids: Burt and
    Adelson, IEEE Transactions on Communications 1983); here only unusual images change, so that usual ones keep their light.

    Torch and exported files compute the same formula, with operators that every runtime has.
    """

    deviations: torch.Tensor
    mean_C: torch.Tensor
    mean_spread_C: torch.Tensor
    log_SC: torch.Tensor
    log_spread_SC: torch.Tensor

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """tensors: by the names in `TENSORS`."""
        super().__init__()
        for name in TENSORS:
            self.register_buffer(name, tensors[name])

    @classmethod
    def of(cls, batches: Sequence[torch.Tensor], deviations: float) -> "InputAlignment":
        """The alignment learned from source images (B, C, H, W). InputError for fewer than two."""
        count = sum(map(len, batches))
        if count < FEWEST:
            raise InputError(f"source images: {count}; allowed: {FEWEST} or more; give images like those of training")
        mean_BC, log_BSC = (torch.cat(parts) for parts in zip(*map(_light, batches), strict=True))
        found = (torch.tensor(deviations), mean_BC.mean(0), mean_BC.std(0), log_BSC.mean(0), log_BSC.std(0))
        return cls(dict(zip(TENSORS, found, strict=True)))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The images, moved into the usual range."""
        aligned_BCHW: torch.Tensor = self._aligned(x_BCHW)
        return aligned_BCHW

    def nodes(self, x_BCHW: gs.Tensor, aligned_BCHW: gs.Tensor) -> list[gs.Node]:
        """The ONNX nodes (opset 17) that compute `aligned_BCHW` from `x_BCHW`."""
        made: list[gs.Node] = []
        self._aligned(_OnnxValue(x_BCHW, made))
        made[-1].outputs = [aligned_BCHW]
        return made

    def _aligned(self, x: Any) -> Any:
        """x: images as a tensor, or as a value of an ONNX model."""
        mean = _mean(x)
        lower, upper = self._limits(self.mean_C, self.mean_spread_C)
        change = (lower - mean).relu() - (mean - upper).relu()
        scales = _scales(x, mean, detailed=len(self.log_SC) > 1)
        for scale, usual_C, spread_C in zip(scales, self.log_SC, self.log_spread_SC, strict=True):
            log, (lower, upper) = _log(scale, prod(x.shape[2:])), self._limits(usual_C, spread_C)
            gain = ((lower - log).relu() - (log - upper).relu()).exp()
            change = scale * (gain - 1.0) + change
        return x + change

    def _limits(self, usual_C: torch.Tensor, spread_C: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The least and the largest usual values (1, C, 1, 1)."""
        slack_C = self.deviations * spread_C
        return (usual_C - slack_C)[None, :, None, None], (usual_C + slack_C)[None, :, None, None]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors by their names among a SubNet's own tensors."""
        return {f"{PREFIX}{name}": getattr(self, name) for name in TENSORS}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> "InputAlignment | None":
        """The alignment stored in a SubNet's own tensors; None if not all of its tensors are present."""
        given = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
        given |= {name: given[whole][None] for name, whole in ONE_SCALE.items() if whole in given}
        if not all(name in given for name in TENSORS):
            return None
        return cls({name: given[name].detach().clone() for name in TENSORS})


def _light(x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means (B, C) of channels, and logarithms (B, S, C) of the standard deviations of their scales."""
    mean = _mean(x_BCHW)
    scales = _scales(x_BCHW, mean, detailed=True)
    return mean.flatten(1), torch.stack([_log(scale, prod(x_BCHW.shape[2:])).flatten(1) for scale in scales], 1)


def _mean(x: Any) -> Any:
    """The mean of each channel (B, C, 1, 1): of rows first, since some runtimes sum all pixels one by one."""
    return x.mean(3, keepdim=True).mean(2, keepdim=True)


def _scales(x: Any, mean: Any, *, detailed: bool) -> list[Any]:
    """Details of images, and the coarse part minus its mean; they add up to the image minus its mean."""
    if not detailed:
        return [x - mean]
    coarse = x.smoothed() if isinstance(x, _OnnxValue) else _smoothed(x)
    return [x - coarse, coarse - mean]


def _smoothed(x_BCHW: torch.Tensor) -> torch.Tensor:
    """The mean of each pixel's window, restricted to the image."""
    return functional.avg_pool2d(x_BCHW, WINDOW, 1, WINDOW // 2, count_include_pad=False)


def _log(scale: Any, pixels: int) -> Any:
    """Logarithm of the standard deviation of each channel (B, C, 1, 1), whose mean is about zero."""
    deviation = (_mean(scale * scale) * (pixels / (pixels - 1))).sqrt()
    return ((deviation - SMALLEST_DEVIATION).relu() + SMALLEST_DEVIATION).log()


class _OnnxValue:
    """A value of an ONNX model that supports the arithmetic of a tensor; each operation adds nodes to `made`."""

    def __init__(self, tensor: gs.Tensor, made: list[gs.Node]) -> None:
        self._tensor, self._made, self.shape = tensor, made, tensor.shape

    def _follow(self, op: str, *operands: Any, **attributes: Any) -> "_OnnxValue":
        place = f"{NODES}{len(self._made)}"
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

    def smoothed(self) -> "_OnnxValue":
        window = {"kernel_shape": [WINDOW] * 2, "strides": [1, 1], "pads": [WINDOW // 2] * 4, "count_include_pad": 0}
        return self._follow("AveragePool", self, **window)

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
