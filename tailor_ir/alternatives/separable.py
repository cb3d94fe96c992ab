"""`separable`: k×k convolutions as a depthwise and a pointwise one. Source: MobileNets (arXiv 1704.04861)."""

from math import prod

import torch

from tailor_ir.alternatives.layers import write_layers
from tailor_ir.alternatives.least_squares.regression import factor, regression
from tailor_ir.alternatives.least_squares.replaced_layer import ReplacedLayer
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node

ROUNDS = 2
"""Rounds of least squares, pointwise and depthwise in turn; a third round changes little."""


def _write(sketch: Sketch, number: float) -> str:
    return write_layers(sketch, _fits, _replace, "no convolution over all channels has a kernel of several positions")


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    return node.op == "Conv" and prod(weight.shape[2:]) > 1 and weight.shape[1] > 1


def _replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
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


SEPARABLE = AlternativeKind(name="separable", choices={"separable": 1}, write=_write)
