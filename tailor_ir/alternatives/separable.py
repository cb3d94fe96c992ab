"""`separable`: k×k convolutions as a depthwise and a pointwise one. Source: MobileNets (arXiv 1704.04861)."""

from math import prod

import torch

from tailor_ir.alternatives.layers import write_layers
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node


def _write(sketch: Sketch, number: float) -> str:
    return write_layers(sketch, _fits, _replace, "no convolution over all channels has a kernel of several positions")


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    return node.op == "Conv" and prod(weight.shape[2:]) > 1 and weight.shape[1] > 1


def _replace(sketch: Sketch, node: Node, x: str, weight: torch.Tensor, bias: str | None) -> str:
    depthwise, pointwise = separated(weight)
    first = sketch.convolution(f"{node.name}/depthwise", x, depthwise, node, groups=weight.shape[1])
    return sketch.convolution(f"{node.name}/pointwise", first, pointwise, bias=bias)


def separated(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(I, 1, *K) and (O, I, 1 …), whose composition is nearest to (O, I, *K): of each input channel the first singular pair."""
    w = weight.double().flatten(2).permute(1, 0, 2)  # (I, O, K)
    kernels = torch.linalg.eigh(w.mT @ w)[1][:, :, -1]  # (I, K), of length 1
    points = torch.einsum("iok,ik->io", w, kernels)
    root = points.norm(dim=1, keepdim=True).clamp_min(1e-30).sqrt()
    depthwise = (root * kernels).reshape(weight.shape[1], 1, *weight.shape[2:])
    pointwise = (points / root).T.reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2))
    return depthwise.to(weight.dtype), pointwise.to(weight.dtype)


SEPARABLE = AlternativeKind(name="separable", choices={"separable": 1}, write=_write)
