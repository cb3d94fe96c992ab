"""Kinds that replace the layers of a block one by one, each by several cheaper ones: shared by their records."""

from collections.abc import Callable

import numpy as np
import torch

from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Kept, NotHere, Rewrite, Sketch
from tailor_ir.axes import surviving
from tailor_ir.graph import Node

Replace = Callable[[Sketch, Node, str, torch.Tensor, str | None], str]
"""Writes the layers in the place of one: sketch, node, what it reads, its weight, the name of its bias; gives the result."""
Fits = Callable[[Site, Node, torch.Tensor], bool]
"""Whether a layer with this weight can be replaced."""
Order = Callable[[torch.Tensor], np.ndarray]
"""An order (O,) of the output channels of a weight (O, I, *K)."""


def write_layers(sketch: Sketch, fits: Fits, replace: Replace, why: str, kept: Kept | None = None) -> str:
    """The block with every layer that fits replaced; NotHere (`why`) where none does."""
    site = sketch.site
    layers = layers_of(site, fits)
    if not layers:
        raise NotHere(why)
    rewrites = {node.name: _rewrite(replace, kept or {}) for node in layers}
    return sketch.copy(site.nodes, {site.entry: site.entry}, kept, rewrites)[site.exit]


def layers_of(site: Site, fits: Fits) -> list[Node]:
    """The layers over all channels that fit."""
    return [n for n in site.nodes if _is_dense(site, n) and fits(site, n, site.network.tensors[n.inputs[1]])]


def _is_dense(site: Site, node: Node) -> bool:
    """Whether a node is a linear map or a convolution over all channels, with a trained weight that nobody else reads."""
    if node.op not in ("Conv", "Linear") or node.int("group", 1) != 1:
        return False
    return node.inputs[1] in site.network.graph.parameters


def _rewrite(replace: Replace, kept: Kept) -> Rewrite:
    def write(sketch: Sketch, node: Node, x: str) -> str:
        tensors = sketch.network.tensors
        weight = ordered(sketch.site, node.inputs[1], kept)
        bias = None
        if len(node.inputs) > 2 and node.inputs[2]:
            assert node.inputs[2] in tensors, node
            bias = sketch.parameter(node.inputs[2], ordered(sketch.site, node.inputs[2], kept))
        return replace(sketch, node, x, weight, bias)

    return write


def ordered(site: Site, name: str, kept: Kept) -> torch.Tensor:
    """A tensor with the channels of some groups in another order."""
    tensor = site.network.tensors[name]
    for dim, axis in enumerate(site.network.axes(name)):
        if axis.groups & kept.keys():
            tensor = tensor.index_select(dim, torch.from_numpy(surviving(axis, kept)))
    return tensor


def rounded(channels: float, full: int) -> int:
    """Channels for about so many: multiples of 8 where there are that many, at least one, at most `full`."""
    count = round(channels / 8) * 8 if channels >= 8 else max(1, round(channels))
    return int(min(full, count))


def in_order(site: Site, fits: Fits, order: Order) -> Kept:
    """An order of the channels of each group that layers that fit write, where the group lives in the block alone."""
    found: dict[int, np.ndarray] = {}
    for node in layers_of(site, fits):
        group = site.own_group(site.network.axes(node.outputs[0])[1])
        if group is not None and group not in found:
            found[group] = order(site.network.tensors[node.inputs[1]])
    return found


def falling(scores: torch.Tensor) -> np.ndarray:
    """Positions in falling score."""
    return np.argsort(-scores.double().numpy(), kind="stable")
