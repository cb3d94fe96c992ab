"""`ghost`: half of a convolution's channels; the others are a depthwise convolution of these. Source: GhostNet (CVPR 2020)."""

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

from tailor_ir.alternatives.layers import ReplacedLayer, falling, in_order, write_layers
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node

LEAST_CHANNELS = 16
KERNEL = 3


def _write(sketch: Sketch, number: float) -> str:
    reason = "no convolution writes channels of the block alone"
    return write_layers(
        sketch, _fits, _replace, reason, in_order(sketch, _fits, lambda layer: paired(layer.weight, layer.metric))
    )


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    inside = site.is_inside(site.network.axes(node.outputs[0])[1])
    even = weight.shape[0] % 2 == 0 and weight.shape[0] >= LEAST_CHANNELS
    return node.op == "Conv" and weight.ndim == 4 and even and inside and weight.shape[1] > 1


def paired(weight: torch.Tensor, metric: torch.Tensor | None = None) -> np.ndarray:
    """The channels of (O, I, *K) with the largest L1 norm, then for each of them the one that its multiples are nearest to.

    The sum of what is left over all pairs is the least that there is. With the metric of its patches, results take the place
    of weights: the channels with the largest variance, and the ones that are most like them.
    """
    w = weight.double().flatten(1)
    gram = _gram(w, metric)
    order = falling(w.abs().sum(1) if metric is None else gram.diagonal())
    first, second = (torch.from_numpy(part) for part in np.split(order, 2))
    explained = gram[first][:, second].square() / gram.diagonal()[first, None].clamp_min(1e-30)
    columns = linear_sum_assignment(-explained.numpy())[1]
    return np.concatenate([order[: len(first)], order[len(first) :][columns]])


def _gram(w: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    return w @ w.T if metric is None else w @ metric @ w.T


def _replace(sketch: Sketch, layer: ReplacedLayer, x: str) -> str:
    first, cheap = ghosts(layer.weight, layer.metric)
    name = layer.node.name
    primary = sketch.convolution(f"{name}/primary", x, first, layer.node)
    second = sketch.convolution(f"{name}/cheap", primary, cheap, groups=len(cheap))
    return sketch.biased(name, sketch.concatenated(f"{name}/ghost", (primary, second)), layer.bias)


def ghosts(weight: torch.Tensor, metric: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The first half of (O, I, *K) and (O / 2, 1, 3, 3), which makes the other half of the first.

    Each channel of the second half becomes the multiple of its partner in the first that is nearest to it, in its weights or,
    with the metric of its patches, in its results.
    """
    half = len(weight) // 2
    gram = _gram(weight.double().flatten(1), metric)
    scale = gram.diagonal(half) / gram.diagonal()[:half].clamp_min(1e-30)
    cheap = torch.zeros(half, 1, KERNEL, KERNEL, dtype=torch.float64)
    cheap[:, 0, KERNEL // 2, KERNEL // 2] = scale
    return weight[:half], cheap.to(weight.dtype)


GHOST = AlternativeKind(name="ghost", choices={"ghost": 1}, write=_write)
