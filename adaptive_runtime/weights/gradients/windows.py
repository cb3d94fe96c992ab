"""ONNX operators that move a window over images, in torch. Legend: B batch, C channels, S sizes of an image.

ONNX pads the begin of each axis and then the end of each, which may differ. Torch's operators pad both sides alike.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

Operands = Sequence[torch.Tensor | None]
Attributes = Mapping[str, Any]
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
MAX_POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE_POOLS = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def convolution(operands: Operands, attributes: Attributes) -> torch.Tensor:
    """Conv of x (B, C, *S) with weights and an optional bias."""
    x, weight, *bias = operands
    assert x is not None
    assert weight is not None
    x, padding = _padded(x, attributes, 0.0)
    rank = x.dim() - 2
    return CONVOLUTIONS[rank](
        x,
        weight,
        bias[0] if bias else None,
        stride=attributes.get("strides", [1] * rank),
        padding=padding,
        dilation=attributes.get("dilations", [1] * rank),
        groups=attributes.get("group", 1),
    )


def max_pool(operands: Operands, attributes: Attributes) -> torch.Tensor:
    """MaxPool of x (B, C, *S)."""
    (x,) = operands
    assert x is not None
    x, padding = _padded(x, attributes, -math.inf)
    rank = x.dim() - 2
    found: torch.Tensor = MAX_POOLS[rank](
        x,
        attributes["kernel_shape"],
        stride=attributes.get("strides", [1] * rank),
        padding=padding,
        dilation=attributes.get("dilations", [1] * rank),
        ceil_mode=bool(attributes.get("ceil_mode", 0)),
    )
    return found


def average_pool(operands: Operands, attributes: Attributes) -> torch.Tensor:
    """AveragePool of x (B, C, *S). NotImplementedError: padding that is not counted and differs between sides."""
    (x,) = operands
    assert x is not None
    counts = bool(attributes.get("count_include_pad", 0))
    rank = x.dim() - 2
    padded, padding = _padded(x, attributes, 0.0)
    if padded is not x and not counts:
        raise NotImplementedError("padding that differs between sides and does not count")
    return AVERAGE_POOLS[rank](
        padded,
        attributes["kernel_shape"],
        stride=attributes.get("strides", [1] * rank),
        padding=padding,
        ceil_mode=bool(attributes.get("ceil_mode", 0)),
        count_include_pad=counts,
    )


def _padded(x: torch.Tensor, attributes: Attributes, value: float) -> tuple[torch.Tensor, list[int]]:
    """The padded input and the operator's own padding.

    If the sides differ, images are padded beforehand with a value.
    """
    if attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotImplementedError(f"auto_pad {attributes['auto_pad']}")
    rank = x.dim() - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    begins, ends = list(pads[:rank]), list(pads[rank:])
    if begins == ends:
        return x, begins
    sides = [side for pair in zip(reversed(begins), reversed(ends), strict=True) for side in pair]
    return functional.pad(x, sides, value=value), [0] * rank
