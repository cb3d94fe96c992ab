"""`low_rank`: linear maps and 1×1 convolutions as two, k×k convolutions as three (Tucker-2), with fewer MACs.

The share of MACs is given. Sources: Denton et al. (NeurIPS 2014); Kim et al. (ICLR 2016), Tucker-2.
"""

from math import prod, sqrt

import torch

from tailor_ir.alternatives.layers import rounded, write_layers
from tailor_ir.alternatives.least_squares import ReplacedLayer, basis, mapped, of_rank, regression, through
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import AlternativeKind, Sketch
from tailor_ir.graph import Node

LEAST_CHANNELS = 16
ITERATIONS = 1


def _write(sketch: Sketch, share: float) -> str:
    def fits(site: Site, node: Node, weight: torch.Tensor) -> bool:
        return min(weight.shape[:2]) >= LEAST_CHANNELS and _saves(site, node, weight, share)

    def replace(sketch: Sketch, layer: ReplacedLayer, x: str, bias: str | None) -> str:
        node, weight = layer.node, layer.weight
        if node.op == "Linear":
            down, up = svd(layer, _rank(weight, share))
            return sketch.linear(f"{node.name}/up", sketch.linear(f"{node.name}/down", x, down), up, bias)
        if prod(weight.shape[2:]) == 1:
            down, up = svd(layer, _rank(weight.flatten(1), share))
            shape = (1,) * (weight.ndim - 2)
            first = sketch.convolution(f"{node.name}/down", x, down.reshape(*down.shape, *shape), node)
            return sketch.convolution(f"{node.name}/up", first, up.reshape(*up.shape, *shape), bias=bias)
        down, core, up = tucker(layer, *_ranks(sketch.site, node, weight, share))
        shape = (1,) * (weight.ndim - 2)
        first = sketch.convolution(f"{node.name}/down", x, down.reshape(*down.shape, *shape))
        second = sketch.convolution(f"{node.name}/core", first, core, node)
        return sketch.convolution(f"{node.name}/up", second, up.reshape(*up.shape, *shape), bias=bias)

    return write_layers(sketch, fits, replace, f"no layer has {LEAST_CHANNELS} channels and more to lose")


def _rank(weight: torch.Tensor, share: float) -> int:
    """The rank at which two consecutive maps have a share of the MACs of one map (O, I)."""
    out, into = weight.shape
    return rounded(share * out * into / (out + into), min(out, into))


def _ranks(site: Site, node: Node, weight: torch.Tensor, share: float) -> tuple[int, int]:
    """The ranks of Tucker-2 (of the input, of the output), in the same proportion to the channels."""
    out, into, kernel = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    before, after = (prod(site.network.shape(name)[2:]) for name in (node.inputs[0], node.outputs[0]))
    square = out * into * kernel * after  # share · square = a · linear + a² · square
    linear = into * into * before + out * out * after
    a = (sqrt(linear**2 + 4 * share * square**2) - linear) / (2 * square)
    return rounded(a * into, into), rounded(a * out, out)


def _saves(site: Site, node: Node, weight: torch.Tensor, share: float) -> bool:
    """Whether the rounded ranks exceed the share by at most a quarter."""
    out, into, kernel = weight.shape[0], weight.shape[1], prod(weight.shape[2:])
    if kernel == 1:
        return _rank(weight.flatten(1), share) * (out + into) <= 1.25 * share * out * into
    first, last = _ranks(site, node, weight, share)
    before, after = (prod(site.network.shape(name)[2:]) for name in (node.inputs[0], node.outputs[0]))
    macs = into * first * before + (first * last * kernel + last * out) * after
    return macs <= 1.25 * share * out * into * kernel * after


def svd(layer: ReplacedLayer, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (rank, I) and (O, rank), whose product is the best approximation of (O, I) in the Frobenius norm.

    With a metric Σ (I, I) of the inputs and gains g (O,) of the results, the best in ‖diag(g) (W − W̃) Σ^½‖.
    """
    up = layer.outputs(rank)
    down = up.T @ (layer.gains * layer.matrix)
    up = up / layer.gains
    root = down.norm(dim=1).clamp_min(1e-30).sqrt()  # splits the singular values between both maps
    return (down / root[:, None]).to(layer.weight.dtype), (up * root).to(layer.weight.dtype)


def tucker(layer: ReplacedLayer, rank_in: int, rank_out: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tucker-2 of (O, I, *K): (rank_in, I), core (rank_out, rank_in, *K) and (O, rank_out), by alternating projections.

    With a metric of its patches (I · K, I · K): the channels that the results depend on most, then least squares for the rest.
    """
    weight = layer.weight
    if layer.metric is not None:
        down, core, up = _tucker_of_data(layer, layer.metric, rank_in, rank_out)
        return down.to(weight.dtype), core.to(weight.dtype), up.to(weight.dtype)
    w = weight.double().flatten(2)
    out = layer.outputs(rank_out)
    for _ in range(ITERATIONS):
        into = basis(torch.einsum("oik,or->irk", w, out).flatten(1), rank_in)
        out = basis(torch.einsum("oik,ir->ork", w, into).flatten(1), rank_out)
    core = torch.einsum("oik,ip,oq->qpk", w, into, out).reshape(rank_out, rank_in, *weight.shape[2:])
    return into.T.to(weight.dtype), core.to(weight.dtype), out.to(weight.dtype)


def _tucker_of_data(
    layer: ReplacedLayer, metric: torch.Tensor, rank_in: int, rank_out: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    down = layer.seen_channels(rank_in)
    read = through(metric, down)
    fitted = layer.gains * regression(mapped(layer.cross, down), read)  # (O, rank_in · K)
    core, up = of_rank(fitted, rank_out, read)
    return down, core.reshape(rank_out, rank_in, *layer.weight.shape[2:]), up / layer.gains


LOW_RANK = AlternativeKind(name="low_rank", choices={"low_rank_0.25": 0.25, "low_rank_0.5": 0.5}, write=_write)
