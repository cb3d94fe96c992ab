"""`fire`: k×k convolutions as a 1×1 that squeezes, then a 1×1 and a k×k that expand side by side.

Source: SqueezeNet (arXiv 1602.07360).
"""

from math import prod

import torch

from tailor_ir.alternatives.layers import falling, in_order, rounded, write_layers
from tailor_ir.alternatives.least_squares.regression import (
    basis,
    mapped,
    over_channels,
    pivots,
    regression,
    through,
)
from tailor_ir.alternatives.least_squares.replaced_layer import ReplacedLayer
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node

LEAST_CHANNELS = 16


def _write(sketch: Sketch, share: float) -> str:
    def replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
        weight, name = layer.weight, layer.node.name
        squeeze, point, kernel = fired(layer, rounded(share * weight.shape[0], weight.shape[1]))
        shape = sketch.shape(x)
        small = sketch.convolution(f"{name}/squeeze", x, squeeze)
        small = sketch.node(f"{name}/relu", "Relu", (small,), (shape[0], squeeze.shape[0], *shape[2:]))
        one = sketch.convolution(f"{name}/expand1", small, point, layer.node)
        several = sketch.convolution(f"{name}/expandk", small, kernel, layer.node)
        return sketch.biased(name, sketch.concatenated(f"{name}/expand", (one, several)), bias)

    order = in_order(sketch, _fits, lambda layer: falling(at_centre(layer)))
    reason = "no convolution with a kernel of several positions writes channels of the block alone"
    return write_layers(sketch, _fits, replace, reason, order)


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    inside = site.is_inside(site.network.axes(node.outputs[0])[1])
    odd = all(size % 2 for size in weight.shape[2:])
    return (
        node.op == "Conv" and prod(weight.shape[2:]) > 1 and odd and inside and min(weight.shape[:2]) >= LEAST_CHANNELS
    )


def _centre(weight: torch.Tensor) -> torch.Tensor:
    """The middle (O, I, 1 …) of the kernels of (O, I, *K)."""
    for dim, size in enumerate(weight.shape[2:], start=2):
        weight = weight.narrow(dim, size // 2, 1)
    return weight


def at_centre(layer: ReplacedLayer) -> torch.Tensor:
    """For each output channel (O,), the share of its energy that the middle of the kernels of (O, I, *K) explains.

    With the metric of its patches: the share of its results that a 1×1 convolution can give.
    """
    weight, metric = layer.weight, layer.metric
    if metric is None:
        energy = weight.double().square()
        return _centre(energy).flatten(1).sum(1) / energy.flatten(1).sum(1).clamp_min(1e-30)
    cross, middle = layer.cross, _middle(weight, weight.shape[1])
    fitted = regression(cross[:, middle], metric[middle][:, middle])
    return (fitted * cross[:, middle]).sum(1) / (layer.matrix * cross).sum(1).clamp_min(1e-30)


def _middle(weight: torch.Tensor, channels: int) -> torch.Tensor:
    """Positions (C,) of the middle of a kernel in patches of `channels` channels."""
    positions = prod(weight.shape[2:])
    return torch.arange(channels) * positions + positions // 2


def fired(layer: ReplacedLayer, channels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Squeeze (S, I, 1 …) and the expansions (O / 2, S, 1 …) and (O - O / 2, S, *K) for a weight (O, I, *K).

    With data, the squeezed channels must pass the Relu unchanged: they are channels of the layer's own input if that is never
    negative, else mixtures of channels, each with its opposite. The expansions are then fitted by least squares.
    """
    weight = layer.weight
    half = len(weight) // 2
    if layer.metric is None:
        squeeze, expand = squeezed(weight, channels)
        return squeeze, _centre(expand[:half]), expand[half:]
    maps = _taken(weight, channels, layer.metric) if layer.nonnegative else _mixtures(layer, channels)
    linear = maps if layer.nonnegative else maps[: channels // 2]
    read = through(layer.metric, linear)
    cross = mapped(layer.cross, linear)
    middle = _middle(weight, len(linear))
    point = regression(cross[:half][:, middle], read[middle][:, middle])[..., None]
    kernel = regression(cross[half:], read).reshape(len(weight) - half, len(linear), -1)
    if not layer.nonnegative:
        rest = torch.zeros(1, channels - 2 * len(linear), 1, dtype=torch.float64)
        point, kernel = (
            torch.cat([each, -each, rest.expand(len(each), -1, each.shape[2])], 1) for each in (point, kernel)
        )
    one = (1,) * (weight.ndim - 2)
    squeeze = maps.reshape(channels, -1, *one).to(weight.dtype)
    return (
        squeeze,
        point.reshape(half, channels, *one).to(weight.dtype),
        kernel.reshape(-1, channels, *weight.shape[2:]).to(weight.dtype),
    )


def _taken(weight: torch.Tensor, channels: int, metric: torch.Tensor) -> torch.Tensor:
    """Selection (S, I) of the single channels that explain most of the results."""
    w = weight.double().flatten(2)
    parts = over_channels(metric, weight.shape[1]) * torch.einsum("oik,ojk->ij", w, w)
    return torch.eye(weight.shape[1], dtype=torch.float64)[pivots(parts, channels)]


def _mixtures(layer: ReplacedLayer, channels: int) -> torch.Tensor:
    """Mixtures (S, I) that the results depend on most, then their opposites; if S is odd, the last row is zero."""
    mixed = layer.seen_channels(channels // 2)
    return torch.cat([mixed, -mixed, torch.zeros(channels % 2, mixed.shape[1], dtype=torch.float64)])


def squeezed(weight: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (S, I, 1 …) and (O, S, *K), whose composition is nearest to (O, I, *K)."""
    w = weight.double().flatten(2)
    into = basis(w.permute(1, 0, 2).flatten(1), channels)  # (I, S)
    expand = torch.einsum("oik,is->osk", w, into).reshape(weight.shape[0], channels, *weight.shape[2:])
    squeeze = into.T.reshape(channels, weight.shape[1], *(1,) * (weight.ndim - 2))
    return squeeze.to(weight.dtype), expand.to(weight.dtype)


FIRE = AlternativeKind(name="fire", choices={"fire": 0.25}, write=_write)
