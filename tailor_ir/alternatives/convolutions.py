"""Alternatives to k×k convolutions: `separable`, `grouped`, `ghost` and `fire`.

separable    a depthwise and a pointwise convolution; MobileNets (arXiv 1704.04861)
grouped      convolutions inside the block in groups of channels; ResNeXt (CVPR 2017)
ghost        half of a convolution's channels; a depthwise one adds the other half; GhostNet (CVPR 2020)
fire         a 1×1 that squeezes, then a 1×1 and a k×k that expand side by side; SqueezeNet (arXiv 1602.07360)
"""

from math import prod

import numpy as np
import torch

from tailor_ir.alternatives.layers import falling, in_order, rounded, write_layers
from tailor_ir.alternatives.least_squares import (
    ReplacedLayer,
    basis,
    factor,
    mapped,
    over_channels,
    pivots,
    regression,
    through,
)
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import AlternativeKind, Sketch
from tailor_ir.graph import Node

ROUNDS = 2
"""Rounds of least squares, pointwise and depthwise in turn; a third round changes little."""


def _write_separable(sketch: Sketch, number: float) -> str:
    return write_layers(
        sketch,
        _fits_separable,
        _replace_by_separable,
        "no convolution over all channels has a kernel of several positions",
    )


def _fits_separable(site: Site, node: Node, weight: torch.Tensor) -> bool:
    return node.op == "Conv" and prod(weight.shape[2:]) > 1 and weight.shape[1] > 1


def _replace_by_separable(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
    depthwise, pointwise = separated(layer)
    name, groups = layer.node.name, layer.weight.shape[1]
    first = sketch.convolution(f"{name}/depthwise", x, depthwise, layer.node, groups=groups)
    return sketch.convolution(f"{name}/pointwise", first, pointwise, bias=bias)


def separated(layer: ReplacedLayer) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (I, 1, *K) and (O, I, 1 …), whose composition is near to (O, I, *K), in the metric of its patches.

    Without a metric, the nearest: the first singular pair of each input channel. With a metric, least squares start from there.
    """
    weight, metric = layer.weight, layer.metric
    w = weight.double().flatten(2).permute(1, 0, 2)  # (I, O, K)
    roots = None if metric is None else _roots(metric, len(w))
    seen = w if roots is None else w @ roots
    kernels = torch.linalg.eigh(seen.mT @ seen)[1][:, :, -1]  # (I, K), of length 1
    if roots is not None:
        kernels = torch.linalg.solve_triangular(roots.mT, kernels[..., None], upper=True).squeeze(-1)
    points = torch.einsum("iok,ik->io", w, kernels)
    if metric is not None:
        points, kernels = _fitted(layer.cross, metric, kernels)
    root = (
        (points.norm(dim=1, keepdim=True) / kernels.norm(dim=1, keepdim=True).clamp_min(1e-30)).clamp_min(1e-30).sqrt()
    )
    depthwise = (root * kernels).reshape(weight.shape[1], 1, *weight.shape[2:])
    pointwise = (points / root).T.reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2))
    return depthwise.to(weight.dtype), pointwise.to(weight.dtype)


def _roots(metric: torch.Tensor, channels: int) -> torch.Tensor:
    """A factor (I, K, K) of the metric of each channel's own patches."""
    positions = len(metric) // channels
    own = torch.arange(channels)
    blocks = metric.reshape(channels, positions, channels, positions)[own, :, own]
    return torch.stack([factor(block) for block in blocks])


def _fitted(cross: torch.Tensor, metric: torch.Tensor, kernels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Points (I, O) and kernels (I, K) by least squares in turn. cross: (O, I · K)."""
    channels, positions = kernels.shape
    by_channel = metric.reshape(channels, positions, channels, positions)
    points = torch.zeros(channels, len(cross), dtype=torch.float64)
    for turn in range(ROUNDS):
        if turn:
            both = torch.kron(points @ points.T, torch.ones(positions, positions, dtype=torch.float64))
            wanted = torch.einsum("io,oik->ik", points, cross.reshape(len(cross), channels, positions))
            kernels = regression(wanted.reshape(1, -1), both * metric).reshape(channels, positions)
        read = torch.einsum("ik,ikjl,jl->ij", kernels, by_channel, kernels)
        seen = torch.einsum("oik,ik->oi", cross.reshape(len(cross), channels, positions), kernels)
        points = regression(seen, read).T
    return points, kernels


SEPARABLE = AlternativeKind(name="separable", choices={"separable": 1}, write=_write_separable)


def _write_grouped(sketch: Sketch, number: float) -> str:
    groups = int(number)

    def fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
        if node.op != "Conv" or prod(weight.shape[2:]) == 1 or weight.shape[0] % groups or weight.shape[1] % groups:
            return False
        channels = (site.network.axes(node.inputs[0])[1], site.network.axes(node.outputs[0])[1])
        return min(weight.shape[:2]) >= 4 * groups and all(map(site.is_inside, channels))

    def replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
        weight = diagonal(layer, groups)
        name = f"{layer.node.name}/grouped"
        return sketch.convolution(name, x, weight, layer.node, bias=bias, groups=groups)

    return write_layers(
        sketch,
        fits,
        replace,
        "no convolution with a kernel of several positions reads and writes channels of the block alone",
    )


def diagonal(layer: ReplacedLayer, groups: int) -> torch.Tensor:
    """The diagonal part (O, I / groups, *K) of (O, I, *K): the weights from inputs to outputs of the same group.

    With the metric of its patches: the grouped weight whose results are nearest.
    """
    weight, metric = layer.weight, layer.metric
    if metric is not None:
        inputs = torch.arange(len(metric)).chunk(groups)
        cross = layer.cross.chunk(groups)
        fitted = [regression(own[:, seen], metric[seen][:, seen]) for own, seen in zip(cross, inputs, strict=True)]
        return torch.cat(fitted).reshape(weight.shape[0], -1, *weight.shape[2:]).to(weight.dtype)
    parts = weight.reshape(groups, -1, groups, weight.shape[1] // groups, *weight.shape[2:])
    own = torch.arange(groups)
    return parts[own, :, own].reshape(weight.shape[0], -1, *weight.shape[2:])


GROUPED = AlternativeKind(name="grouped", choices={"grouped_4": 4}, write=_write_grouped)


LEAST_CHANNELS = 16
KERNEL = 3


def _write_ghost(sketch: Sketch, number: float) -> str:
    reason = "no convolution writes channels of the block alone"
    return write_layers(sketch, _fits_ghost, _replace_by_ghost, reason, in_order(sketch, _fits_ghost, paired))


def _fits_ghost(site: Site, node: Node, weight: torch.Tensor) -> bool:
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


def _replace_by_ghost(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
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


GHOST = AlternativeKind(name="ghost", choices={"ghost": 1}, write=_write_ghost)


def _write_fire(sketch: Sketch, share: float) -> str:
    def replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
        weight, name = layer.weight, layer.node.name
        squeeze, point, kernel = fired(layer, rounded(share * weight.shape[0], weight.shape[1]))
        shape = sketch.shape(x)
        small = sketch.convolution(f"{name}/squeeze", x, squeeze)
        small = sketch.node(f"{name}/relu", "Relu", (small,), (shape[0], squeeze.shape[0], *shape[2:]))
        one = sketch.convolution(f"{name}/expand1", small, point, layer.node)
        several = sketch.convolution(f"{name}/expandk", small, kernel, layer.node)
        return sketch.biased(name, sketch.concatenated(f"{name}/expand", (one, several)), bias)

    order = in_order(sketch, _fits_fire, lambda layer: falling(at_centre(layer)))
    reason = "no convolution with a kernel of several positions writes channels of the block alone"
    return write_layers(sketch, _fits_fire, replace, reason, order)


def _fits_fire(site: Site, node: Node, weight: torch.Tensor) -> bool:
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


FIRE = AlternativeKind(name="fire", choices={"fire": 0.25}, write=_write_fire)
