"""`ghost`: half of a convolution's channels; the others are a depthwise convolution of these. Source: GhostNet (CVPR 2020)."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from tailor_ir.alternatives.layers import falling, in_order, write_layers
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node

LEAST_CHANNELS = 16
KERNEL = 3


def _write(sketch: Sketch, number: float) -> str:
    reason = "no convolution writes channels of the block alone"
    return write_layers(sketch, _fits, _replace, reason, in_order(sketch.site, _fits, paired))


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    inside = site.is_inside(site.network.axes(node.outputs[0])[1])
    even = weight.shape[0] % 2 == 0 and weight.shape[0] >= LEAST_CHANNELS
    return node.op == "Conv" and weight.ndim == 4 and even and inside and weight.shape[1] > 1


def paired(weight: torch.Tensor) -> np.ndarray:
    """The channels of (O, I, *K) with the largest L1 norm, then for each of them the one that its multiples are nearest to.

    The sum of what is left over all pairs is the least that there is.
    """
    w = weight.double().flatten(1)
    order = falling(w.abs().sum(1))
    first, second = (w[torch.from_numpy(part)] for part in np.split(order, 2))
    explained = (first @ second.T).square() / first.square().sum(1, keepdim=True).clamp_min(1e-30)
    columns = linear_sum_assignment(-explained.numpy())[1]
    return np.concatenate([order[: len(first)], order[len(first) :][columns]])


def _replace(sketch: Sketch, node: Node, x: str, weight: torch.Tensor, bias: str | None) -> str:
    first, cheap = ghosts(weight)
    primary = sketch.convolution(f"{node.name}/primary", x, first, node)
    second = sketch.convolution(f"{node.name}/cheap", primary, cheap, groups=len(cheap))
    return sketch.biased(node.name, sketch.concatenated(f"{node.name}/ghost", (primary, second)), bias)


def ghosts(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first half of (O, I, *K) and (O / 2, 1, 3, 3), which makes the other half of the first.

    Each channel of the second half becomes the multiple of its partner in the first that is nearest to it.
    """
    half = len(weight) // 2
    first, second = weight[:half].double().flatten(1), weight[half:].double().flatten(1)
    scale = (first * second).sum(1) / first.square().sum(1).clamp_min(1e-30)
    cheap = torch.zeros(half, 1, KERNEL, KERNEL, dtype=torch.float64)
    cheap[:, 0, KERNEL // 2, KERNEL // 2] = scale
    return weight[:half], cheap.to(weight.dtype)


GHOST = AlternativeKind(name="ghost", choices={"ghost": 1}, write=_write)
