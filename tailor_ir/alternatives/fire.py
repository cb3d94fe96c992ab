"""`fire`: k×k convolutions as a 1×1 that squeezes, then a 1×1 and a k×k that expand side by side.

Source: SqueezeNet (arXiv 1602.07360).
"""

from math import prod

import torch

from tailor_ir.alternatives.layers import falling, in_order, rounded, write_layers
from tailor_ir.alternatives.low_rank import basis
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Sketch
from tailor_ir.graph import Node

LEAST_CHANNELS = 16


def _write(sketch: Sketch, share: float) -> str:
    def replace(sketch: Sketch, node: Node, x: str, weight: torch.Tensor, bias: str | None) -> str:
        squeeze, expand = squeezed(weight, rounded(share * weight.shape[0], weight.shape[1]))
        shape = sketch.shape(x)
        small = sketch.convolution(f"{node.name}/squeeze", x, squeeze)
        small = sketch.node(f"{node.name}/relu", "Relu", (small,), (shape[0], squeeze.shape[0], *shape[2:]))
        half = weight.shape[0] // 2
        point = sketch.convolution(f"{node.name}/expand1", small, _centre(expand[:half]), node)
        kernel = sketch.convolution(f"{node.name}/expandk", small, expand[half:], node)
        return sketch.biased(node.name, sketch.concatenated(f"{node.name}/expand", (point, kernel)), bias)

    order = in_order(sketch.site, _fits, lambda weight: falling(_at_centre(weight)))
    reason = "no convolution with a kernel of several positions writes channels of the block alone"
    return write_layers(sketch, _fits, replace, reason, order)


def _fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
    inside = site.is_inside(site.network.axes(node.outputs[0])[1])
    odd = all(size % 2 for size in weight.shape[2:])
    return (
        node.op == "Conv" and prod(weight.shape[2:]) > 1 and odd and inside and min(weight.shape[:2]) >= LEAST_CHANNELS
    )


def _centre(weight: torch.Tensor) -> torch.Tensor:
    """(O, I, 1 …): the middle of the kernels of (O, I, *K)."""
    for dim, size in enumerate(weight.shape[2:], start=2):
        weight = weight.narrow(dim, size // 2, 1)
    return weight


def _at_centre(weight: torch.Tensor) -> torch.Tensor:
    """(O,) the share of the energy of each output channel's kernels that lies in their middle."""
    energy = weight.double().square()
    return _centre(energy).flatten(1).sum(1) / energy.flatten(1).sum(1).clamp_min(1e-30)


def squeezed(weight: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(S, I, 1 …) and (O, S, *K), whose composition is nearest to (O, I, *K)."""
    w = weight.double().flatten(2)
    into = basis(w.permute(1, 0, 2).flatten(1), channels)  # (I, S)
    expand = torch.einsum("oik,is->osk", w, into).reshape(weight.shape[0], channels, *weight.shape[2:])
    squeeze = into.T.reshape(channels, weight.shape[1], *(1,) * (weight.ndim - 2))
    return squeeze.to(weight.dtype), expand.to(weight.dtype)


FIRE = AlternativeKind(name="fire", choices={"fire": 0.25}, write=_write)
