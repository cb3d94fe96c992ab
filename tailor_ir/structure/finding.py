"""Joint search for the axes and regions of a network: how positions form windows, and which layers can be skipped."""

from collections.abc import Sequence

from tailor_ir.dims import Windows
from tailor_ir.graph import Graph, Tensors
from tailor_ir.structure.propagation import AxisMap, propagate
from tailor_ir.structure.regions import Regions, find_regions, repeats
from tailor_ir.structure.resolutions import Resolutions


def find_axes_and_regions(graph: Graph, tensors: Tensors) -> tuple[AxisMap, Regions]:
    """Axes and regions of a network. Producers of one value have the same axes; regions are those of the original network.

    With more resolution, windows of positions grow in number or in size, whichever leaves resolutions to choose from. If
    nothing can be skipped, layers that keep the shape get the same axes on both sides, so that they can be skipped; except if
    the network's input or output would then fix their channels.
    """
    windows: Windows = "number"
    same = tuple((each.value, each.producer) for each in graph.alternatives)
    original = graph.original()
    axis_map = propagate(graph, tensors, joins=same)
    sides = () if graph.image is None else graph.positions
    if sides and _choices(axis_map, sides) == 1:
        other = propagate(graph, tensors, "size", same)
        if _choices(other, sides) > 1:
            axis_map, windows = other, "size"
    regions = find_regions(original, axis_map)
    skips = () if any(stage.trailing for stage in regions.stages) else repeats(original, regions)
    if skips:
        skippable = propagate(graph, tensors, windows, same, skips)
        found = find_regions(original, skippable, skips)
        if any(stage.trailing for stage in found.stages):
            return skippable, found
    return axis_map, regions


def _choices(axis_map: AxisMap, sides: Sequence[int]) -> int:
    return 1 if axis_map.resolution_frozen else len(Resolutions(axis_map, sides).proposed())
