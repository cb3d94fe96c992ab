"""`pruned`: the block with fewer hidden channels and heads (the important ones), and weights of its own.

Source: AdaptiveNet (MobiCom 2023) §4, which keeps the first channels. With data, the importance of a channel is the loss in the
results of the layers that read it, and these layers compensate for it by least squares: He et al. (ICCV 2017).
"""

import numpy as np
import torch

from tailor_ir.alternatives.layers import dense_layers, layer_of
from tailor_ir.alternatives.least_squares.regression import regression
from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.site import Site
from tailor_ir.alternatives.sketch import Kept, NotHere, Sketch
from tailor_ir.axes import Channels, surviving
from tailor_ir.graph import Node
from tailor_ir.spaces.draft import kept_elements
from tailor_ir.subnets.cuts import importance


def _write(sketch: Sketch, share: float) -> str:
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


PRUNED = AlternativeKind(name="pruned", choices={"pruned_0.25": 0.25, "pruned_0.5": 0.5}, write=_write)
