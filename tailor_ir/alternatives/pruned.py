"""`pruned`: the block with fewer hidden channels and heads, the important ones, and weights of its own.

Source: AdaptiveNet (MobiCom 2023) §4, which keeps the first channels.
"""

import numpy as np

from tailor_ir.alternatives.record import AlternativeKind
from tailor_ir.alternatives.sketch import NotHere, Sketch
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
            order = np.argsort(-importance(network.graph, network.tensors, network.axis_map, group), kind="stable")
            kept[group] = np.sort(order[:count])
    if not kept:
        raise NotHere("no channels live inside of the block alone")
    copied = sketch.copy(site.nodes, {site.entry: site.entry}, kept)
    return copied[site.exit]


PRUNED = AlternativeKind(name="pruned", choices={"pruned_0.25": 0.25, "pruned_0.5": 0.5}, write=_write)
