"""`ghost`: half of a convolution's channels; a depthwise one adds the other half. Source: GhostNet (CVPR 2020)."""

import numpy as np
import torch

from tailor_ir.alternatives.layers import falling, in_order, write_layers
from tailor_ir.alternatives.least_squares.replaced_layer import ReplacedLayer
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node

LEAST_CHANNELS = 16
KERNEL = 3


def _write(sketch: Sketch, number: float) -> str:
    reason = "no convolution writes channels of the block alone"
    return write_layers(sketch, _fits, _replace, reason, in_order(sketch, _fits, paired))


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    inside = site.is_inside(site.network.axes(node.outputs[0])[1])
    even = weight.shape[0] % 2 == 0 and weight.shape[0] >= LEAST_CHANNELS
    return node.op == "Conv" and weight.ndim == 4 and even and inside and weight.shape[1] > 1


def paired(layer: ReplacedLayer) -> np.ndarray:
    """The half of the channels of (O, I, *K) with the largest L1 norm, then for each of them its partner in the other half.

    A partner is approximated by a multiple of its channel; the pairs minimise the sum of the residuals. With the metric of its
    patches, results replace weights: the channels with the largest variance, and the most similar ones as partners.
    """
    w, cross = layer.matrix, layer.cross
    squares = (w * cross).sum(1)
    order = falling(w.abs().sum(1) if layer.metric is None else squares)
    first, second = (torch.from_numpy(part) for part in np.split(order, 2))
    explained = (cross[first] @ w[second].T).square() / squares[first, None].clamp_min(1e-30)
    from scipy.optimize import linear_sum_assignment  # the import takes a second

    columns = linear_sum_assignment(-explained.numpy())[1]
    return np.concatenate([order[: len(first)], order[len(first) :][columns]])


def _replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
    first, cheap = ghosts(layer)
    name = layer.node.name
    primary = sketch.convolution(f"{name}/primary", x, first, layer.node)
    second = sketch.convolution(f"{name}/cheap", primary, cheap, groups=len(cheap))
    return sketch.biased(name, sketch.concatenated(f"{name}/ghost", (primary, second)), bias)


def ghosts(layer: ReplacedLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """The first half of (O, I, *K), and the depthwise weight (O / 2, 1, 3, 3) that makes the other half from the first.

    Each channel of the second half becomes the nearest multiple of its partner in the first: nearest in its weights or, with
    the metric of its patches, in its results.
    """
    half = len(layer.weight) // 2
    first, second = layer.matrix.split(half)
    seen = first if layer.metric is None else first @ layer.metric
    scale = (seen * second).sum(1) / (seen * first).sum(1).clamp_min(1e-30)
    cheap = torch.zeros(half, 1, KERNEL, KERNEL, dtype=torch.float64)
    cheap[:, 0, KERNEL // 2, KERNEL // 2] = scale
    return layer.weight[:half], cheap.to(layer.weight.dtype)


GHOST = AlternativeKind(name="ghost", choices={"ghost": 1}, write=_write)
