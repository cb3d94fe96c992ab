"""`merged`: one block replaces two or three, also across blocks that change the resolution.

The largest of the replaced blocks is kept, or, if one block changes the shape, that block. If several do, the last of them is
kept; it reads the entry of the first through the windows of the others. Source: AdaptiveNet (MobiCom 2023) §4.

`pruned`: the block with fewer hidden channels and heads (the important ones), and weights of its own.

Source: AdaptiveNet (MobiCom 2023) §4, which keeps the first channels. With data, the importance of a channel is the loss in the
results of the layers that read it, and these layers compensate for it by least squares: He et al. (ICCV 2017).
"""

import numpy as np
import torch

from tailor_ir.alternatives.layers import dense_layers, layer_of
from tailor_ir.alternatives.least_squares import regression
from tailor_ir.alternatives.site import Kept, Site, changes_axes, parameters_of
from tailor_ir.alternatives.sketch import AlternativeKind, NotHere, Rewrite, Sketch
from tailor_ir.axes import Channels, surviving
from tailor_ir.graph import Node
from tailor_ir.spaces.draft import kept_elements
from tailor_ir.structure.regions import Block
from tailor_ir.subnets.plans import importance

WINDOW = ("kernel_shape", "strides", "pads", "dilations")
PLACED = ("Conv", "ConvTranspose", "BatchNormalization", "GroupNorm", "InstanceNormalization", "AveragePool", "MaxPool")
"""Operators whose channels are axis 1, regardless of the positions."""


def _write_merged(sketch: Sketch, number: float) -> str:
    site = sketch.site
    changing = [block for block in site.blocks if changes_axes(site.network, block)]
    template = changing[-1] if changing else _largest(site)
    if len(changing) <= 1:
        return sketch.copy(site.nodes_of(template), {template.entry: site.entry})[template.exit]
    x = _windowed(sketch, changing[:-1])
    x, rewrites = _read_by(sketch, template, x)
    return sketch.copy(site.nodes_of(template), {template.entry: x}, rewrites=rewrites)[template.exit]


def _largest(site: Site) -> Block:
    """The block with the most parameters; the last of equal ones."""
    return max(reversed(site.blocks), key=lambda block: parameters_of(site.network, block.nodes))


def _windowed(sketch: Sketch, blocks: list[Block]) -> str:
    """The entry, average-pooled with the windows by which the blocks change the resolution."""
    network, x = sketch.network, sketch.site.entry

    def shapes_of(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return network.shape(node.inputs[0])[2:], network.shape(node.outputs[0])[2:]

    for number, block in enumerate(blocks):
        before, after = (network.shape(name)[2:] for name in (block.entry, block.exit))
        if before == after:
            continue
        strided = [node for node in block.nodes if node.op == "Conv" and shapes_of(node) == (before, after)]
        if len(network.shape(block.entry)) != 4 or not strided:
            raise NotHere("the positions change otherwise than by the stride of a convolution")
        window = max(strided, key=lambda node: network.shape(node.inputs[1])[2:])
        rank = len(before)
        attributes = {key: value for key, value in window.attributes if key in WINDOW}
        attributes |= {"kernel_shape": network.shape(window.inputs[1])[2:], "count_include_pad": 0}
        if window.ints("dilations", (1,) * rank) != (1,) * rank:
            raise NotHere("a dilated convolution changes the resolution")
        attributes.pop("dilations", None)
        shape = (*sketch.shape(x)[:2], *after)
        x = sketch.node(f"window.{number}", "AveragePool", (x,), shape, attributes)
    return x


def _read_by(sketch: Sketch, template: Block, x: str) -> tuple[str, dict[str, Rewrite]]:
    """The input of the template, and the layers to rewrite for the entry's number of channels."""
    network = sketch.network
    have, wanted = sketch.shape(x), network.shape(template.entry)
    at = _channels(sketch, template, x)
    if at is None:
        return x, {}
    readers = [node for node in template.nodes if template.entry in node.inputs]
    last = at == len(wanted) - 1 and not any(node.op in PLACED for node in readers)
    if all(_mixes(sketch, node, last) for node in readers):
        return x, {node.name: _with_channels(have[at]) for node in readers}
    weight = _fitted(torch.eye(wanted[at]), have[at])
    if last:
        return sketch.linear("adapter", x, weight), {}
    if at != 1:
        raise NotHere(f"axis {at} changes before the last block, which is neither its channels nor the last one")
    return sketch.convolution("adapter", x, weight.reshape(*weight.shape, *(1,) * (len(wanted) - 2))), {}


def _channels(sketch: Sketch, template: Block, x: str) -> int | None:
    """The axis in which the present value differs from the template's input; None if they agree."""
    have, wanted = sketch.shape(x), sketch.network.shape(template.entry)
    own, read = (sketch.network.axes(name) for name in (sketch.site.entry, template.entry))
    if len(have) != len(wanted):
        raise NotHere(f"{len(have)} axes before the last block, which reads {len(wanted)}")
    differ = [
        at
        for at, (axis, other) in enumerate(zip(own, read, strict=True))
        if have[at] != wanted[at] or (axis != other and not axis.spatial and not other.spatial)
    ]
    if len(differ) > 1 or any(own[at].spatial or read[at].spatial for at in differ):
        raise NotHere(f"{have} before the last block, which reads {wanted}")
    return differ[0] if differ else None


def _mixes(sketch: Sketch, node: Node, last: bool) -> bool:
    """Whether a node is a layer over all channels of its input, with a weight of its own."""
    stored = len(node.inputs) > 1 and node.inputs[1] in sketch.network.tensors
    return stored and (node.op == "Linear" if last else node.op == "Conv" and node.int("group", 1) == 1)


def _with_channels(channels: int) -> Rewrite:
    """The same layer for another number of input channels."""

    def write(sketch: Sketch, node: Node, x: str) -> str:
        tensors = sketch.network.tensors
        bias = None
        if len(node.inputs) > 2 and node.inputs[2]:
            bias = sketch.parameter(node.inputs[2], tensors[node.inputs[2]])
        weight = _fitted(tensors[node.inputs[1]], channels)
        if node.op == "Linear":
            return sketch.linear(node.name, x, weight, bias)
        return sketch.convolution(node.name, x, weight, node, bias=bias)

    return write


def _fitted(weight: torch.Tensor, channels: int) -> torch.Tensor:
    """A weight (O, I, *K) for another number of input channels, each of which replaces its share of the old ones."""
    old = weight.shape[1]
    shares = torch.arange(old) * channels // old if old >= channels else torch.arange(channels) * old // channels
    if old >= channels:
        fitted = torch.zeros(weight.shape[0], channels, *weight.shape[2:], dtype=weight.dtype)
        return fitted.index_add(1, shares, weight)
    return weight.index_select(1, shares) * (old / channels)


MERGED = AlternativeKind(
    name="merged", choices={"merged_2": 2, "merged_3": 3}, write=_write_merged, blocks=lambda number: int(number)
)


def _write_pruned(sketch: Sketch, share: float) -> str:
    site, network = sketch.site, sketch.network
    groups = site.groups
    kept: dict[int, np.ndarray] = {}
    for group in (*groups.hidden, *groups.heads, *groups.values):
        full = network.axis_map.groups[group]
        count = max(1, kept_elements(full * share, full, groups.element_channels.get(group, 1)))
        if group in groups.heads:
            count = max(1, round(full * share))
        if count < full:
            scores = _lost_without(sketch, group)
            if scores is None:
                scores = importance(network.graph, network.tensors, network.axis_map, group)
            kept[group] = np.sort(np.argsort(-scores, kind="stable")[:count])
    if not kept:
        raise NotHere("no channels live inside of the block alone")
    copied = sketch.copy(site.nodes, {site.entry: site.entry}, kept)
    for node in dense_layers(site):
        if node.name in sketch.moments and site.network.axes(node.inputs[1])[1].groups & kept.keys():
            _make_up(sketch, node, kept)
    return copied[site.exit]


def _lost_without(sketch: Sketch, group: int) -> np.ndarray | None:
    """Mean square (channels,) of each channel's contribution to the layers that read its group; None without data."""
    scores = [_given_to(sketch, node) for node in dense_layers(sketch.site) if _reads(sketch.site, node, group)]
    known = [each for each in scores if each is not None]
    return np.sum(known, axis=0) if known and len(known) == len(scores) else None


def _reads(site: Site, node: Node, group: int) -> bool:
    axis = site.network.axes(node.inputs[1])[1]
    return isinstance(axis, Channels) and axis.group == group


def _given_to(sketch: Sketch, node: Node) -> np.ndarray | None:
    layer = layer_of(sketch, node)
    if layer.metric is None:
        return None
    weight = layer.weight.double()
    weight = weight.reshape(*weight.shape[:2], -1)  # (O, I, K)
    energy = weight.square().sum(0) * layer.metric.diagonal().reshape(weight.shape[1:])
    return energy.sum(1).numpy()


def _make_up(sketch: Sketch, node: Node, kept: Kept) -> None:
    """Fit the weight of a copied layer so that the kept channels give the result of all channels."""
    site, name = sketch.site, node.inputs[1]
    rows, columns = (torch.from_numpy(surviving(axis, kept)) for axis in site.network.axes(name)[:2])
    layer = layer_of(sketch, node)
    assert layer.metric is not None
    seen = layer.numbers_of(columns)
    cross = layer.cross[rows][:, seen]
    copied = sketch.parameters[sketch.name_of(name)]
    fitted = regression(cross, layer.metric[seen][:, seen]).reshape(copied.shape)
    sketch.parameters[sketch.name_of(name)] = fitted.to(copied.dtype)


PRUNED = AlternativeKind(name="pruned", choices={"pruned_0.25": 0.25, "pruned_0.5": 0.5}, write=_write_pruned)
