"""Functions shared by the kinds that replace the layers of a block one by one, each layer by several cheaper ones."""

from collections.abc import Callable

import numpy as np
import torch

from tailor_ir.alternatives.least_squares import ReplacedLayer, norm_factors
from tailor_ir.alternatives.site import Kept, Site
from tailor_ir.alternatives.sketch import NotHere, Rewrite, Sketch
from tailor_ir.axes import surviving
from tailor_ir.graph import Node

Replace = Callable[[Sketch, ReplacedLayer, str, str | None], str]
"""Writes the replacement of one layer. Arguments: sketch, layer, its input, its bias in the sketch; returns the result."""
Fits = Callable[[Site, Node, torch.Tensor], bool]
"""Whether a layer with this weight can be replaced."""
Order = Callable[[ReplacedLayer], np.ndarray]
"""An order (O,) of the output channels of a layer."""


def write_layers(sketch: Sketch, fits: Fits, replace: Replace, why: str, kept: Kept | None = None) -> str:
    """The block with every layer that fits replaced; NotHere (`why`) if none fits."""
    site = sketch.site
    layers = layers_of(site, fits)
    if not layers:
        raise NotHere(why)
    rewrites = {node.name: _rewrite(replace, kept or {}) for node in layers}
    return sketch.copy(site.nodes, {site.entry: site.entry}, kept, rewrites)[site.exit]


def layers_of(site: Site, fits: Fits) -> list[Node]:
    """The layers over all channels that `fits` accepts."""
    return [n for n in dense_layers(site) if fits(site, n, site.network.tensors[n.inputs[1]])]


def dense_layers(site: Site) -> list[Node]:
    """The linear maps, and the convolutions over all channels, with a trained weight."""
    trained = set(site.network.graph.parameters)
    return [
        node
        for node in site.nodes
        if node.op in ("Conv", "Linear") and node.int("group", 1) == 1 and node.inputs[1] in trained
    ]


def _rewrite(replace: Replace, kept: Kept) -> Rewrite:
    def write(sketch: Sketch, node: Node, x: str) -> str:
        bias = None
        if len(node.inputs) > 2 and node.inputs[2]:
            bias = sketch.parameter(node.inputs[2], sketch.network.cut(node.inputs[2], kept))
        return replace(sketch, layer_of(sketch, node, kept), x, bias)

    return write


def layer_of(sketch: Sketch, node: Node, kept: Kept | None = None) -> ReplacedLayer:
    """A layer with the known moments of its data. kept: channels of some groups to keep, in their new order."""
    if node.name not in sketch.layers:
        sketch.layers[node.name] = _layer(sketch, node)
    layer = sketch.layers[node.name]
    outputs, inputs = (
        surviving(axis, kept) if kept and axis.groups & kept.keys() else None
        for axis in sketch.network.axes(node.inputs[1])[:2]
    )
    return layer if outputs is None and inputs is None else layer.reordered(outputs, inputs)


def _layer(sketch: Sketch, node: Node) -> ReplacedLayer:
    weight, moments = sketch.network.tensors[node.inputs[1]], sketch.moments.get(node.name)
    if moments is None:
        return ReplacedLayer(node=node, weight=weight)
    readers = sketch.network.consumers.get(node.outputs[0], ())
    # the mean of results makes no difference if BatchNorms alone read them
    norms = readers if all(other.op == "BatchNormalization" for other in readers) else ()
    metric = moments.metric(centred=bool(norms))
    gain = norm_factors(norms[0], sketch.network.tensors).abs() if len(norms) == 1 else None
    return ReplacedLayer(node=node, weight=weight, metric=metric, gain=gain, nonnegative=moments.nonnegative)


def rounded(channels: float, full: int) -> int:
    """About `channels` channels: a multiple of 8 if at least 8, at least one, at most `full`."""
    count = round(channels / 8) * 8 if channels >= 8 else max(1, round(channels))
    return int(min(full, count))


def in_order(sketch: Sketch, fits: Fits, order: Order) -> Kept:
    """An order of channels for each group that a fitting layer writes and that exists in the block alone."""
    site = sketch.site
    found: dict[int, np.ndarray] = {}
    for node in layers_of(site, fits):
        group = site.own_group(site.network.axes(node.outputs[0])[1])
        if group is not None and group not in found:
            found[group] = order(layer_of(sketch, node))
    return found


def falling(scores: torch.Tensor) -> np.ndarray:
    """Positions in order of falling score."""
    return np.argsort(-scores.double().numpy(), kind="stable")
