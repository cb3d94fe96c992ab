"""Interpolation along single axes by matrices, for forms of Resize that torch does not support."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Node


def coordinates(node: Node, before: int, after: int, factor: float) -> np.ndarray:
    """Source coordinate along an axis of each position of the result. Source: ONNX, Resize-19, coordinate transformations."""
    transform = str(node.attribute("coordinate_transformation_mode", "half_pixel"))
    places, ratio = np.arange(after, dtype=np.float32), np.float32(factor)
    half = (places + np.float32(0.5)) / ratio - np.float32(0.5)
    match transform:
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return half if after > 1 else np.zeros_like(half)
        case "half_pixel_symmetric":
            adjusted = np.float32(after / (factor * before))
            return half + np.float32(before / 2) * (1 - adjusted)
        case "align_corners":
            return places * np.float32((before - 1) / (after - 1)) if after > 1 else np.zeros_like(places)
        case "asymmetric":
            return places / ratio
    raise ImportFailed(
        f"operator '{node.op}' at '{node.name}': coordinates by '{transform}', which reads a region of interest; allowed: "
        "resizing of whole images; crop before resizing"
    )


def _axis_weights(node: Node, before: int, after: int, factor: float) -> np.ndarray:
    """The matrix (after, before) that resizes one axis. Source: ONNX, Resize-19.

    When downsampling with `antialias`, the filter is widened to the distance of the positions.
    """
    places = coordinates(node, before, after, factor)
    weights, rows = np.zeros((after, before), np.float64), np.arange(after)
    mode = str(node.attribute("mode", "nearest"))
    if mode == "nearest":
        weights[rows, np.clip(_nearest(node, places), 0, before - 1)] = 1.0
        return weights.astype(np.float32)
    narrow = min(factor, 1.0) if node.int("antialias", 0) else 1.0
    reach = int(np.ceil((1 if mode == "linear" else 2) / narrow))
    first = np.floor(places).astype(np.int64)
    found = []
    for offset in range(-reach, reach + 2):
        distance = np.abs((first + offset - places.astype(np.float64)) * narrow)
        found.append((first + offset, _kernel(node, mode, distance)))
    if node.int("exclude_outside", 0):
        found = [(at, np.where((at >= 0) & (at < before), own, 0.0)) for at, own in found]
    total = sum(own for _, own in found)
    for at, own in found:
        np.add.at(weights, (rows, np.clip(at, 0, before - 1)), own / total)
    return weights.astype(np.float32)


def _nearest(node: Node, places: np.ndarray) -> np.ndarray:
    match str(node.attribute("nearest_mode", "round_prefer_floor")):
        case "floor":
            found = np.floor(places)
        case "ceil":
            found = np.ceil(places)
        case "round_prefer_ceil":
            found = np.floor(places + np.float32(0.5))
        case _:
            found = np.ceil(places - np.float32(0.5))
    return found.astype(np.int64)


def _kernel(node: Node, mode: str, distance: np.ndarray) -> np.ndarray:
    """Weights as a function of the distance from a position: linear, or cubic with a parameter."""
    if mode == "linear":
        return np.clip(1.0 - distance, 0.0, None)
    a = node.float("cubic_coeff_a", -0.75)
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


class ResizeByMatrices(nn.Module):
    """Multiply axes of x by matrices (size after, size before)."""

    def __init__(self, matrices: Mapping[int, np.ndarray]) -> None:
        super().__init__()
        self.axes = tuple(matrices)
        for axis, matrix in matrices.items():
            self.register_buffer(f"matrix{axis}", torch.from_numpy(matrix), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for axis in self.axes:
            x = F.linear(x.movedim(axis, -1), self.get_buffer(f"matrix{axis}")).movedim(-1, axis)
        return x


def resizing_matrices(
    node: Node, before: Sequence[int], after: Sequence[int], factors: Sequence[float]
) -> dict[int, np.ndarray]:
    """Matrix of each axis that changes. factors: () stands for the ratios of the sizes."""
    given = factors or [new / old for old, new in zip(before, after, strict=True)]
    sizes = zip(before, after, given, strict=True)
    return {
        axis: _axis_weights(node, old, new, factor)
        for axis, (old, new, factor) in enumerate(sizes)
        if old != new or factor != 1.0
    }
