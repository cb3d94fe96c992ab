"""Reads at positions along several axes (GatherND of exporters), rewritten as a look-up along one axis."""

from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tailor_ir.reading.scatter import coordinates_of, is_known, linear_within_samples
from tailor_ir.reading.written_out.file_forms import Builder


def read_block(graph: gs.Graph, node: gs.Node) -> bool:
    """Rewrite a GatherND as a Gather, or as a Reshape if it reads everything in order (masks by sample and position).

    Computed positions have to be concatenated with sample indices. False for other nodes, or if shapes are unknown.
    """
    data, positions = node.inputs
    if not isinstance(positions, gs.Constant):
        return _read_by_sample(graph, node)
    if not positions.values.size or not is_known(data):
        return False
    shape, index = tuple(data.shape), positions.values
    shared = int(node.attrs.get("batch_dims", 0))  # leading axes that data and positions share
    within = coordinates_of(index, shape[shared:])
    own = np.indices(within[0].shape, sparse=True)[:shared]
    coordinates = np.broadcast_arrays(*own, *within)
    places, depth = coordinates[0].shape, len(coordinates)
    rest = shape[depth:]
    b = Builder(graph, node)
    row = linear_within_samples(coordinates, shape) if depth > 1 and places[0] == shape[0] else None
    axis = 0 if row is None else 1
    linear = np.ravel_multi_index(coordinates, shape[:depth]) if row is None else row.reshape(places[1:])
    inner = prod(shape[axis:depth])
    flat = (*shape[:axis], inner, *rest)
    source = data if flat == shape else b.reshape(data, flat)
    if np.array_equal(linear.reshape(-1), np.arange(inner)):
        result = b.reshape(source, (*places, *rest))
    else:
        result = b.add("Gather", [source, b.constant(linear, np.int64)], (*places, *rest), axis=axis)
    b.finish(node, result)
    return True


def _read_by_sample(graph: gs.Graph, node: gs.Node) -> bool:
    """Look-ups at computed positions along the second axis, within each sample."""
    data, positions = node.inputs
    places = _beside_counts(positions, data)
    if places is None or node.attrs.get("batch_dims", 0):
        return False
    samples, length, *rest = data.shape
    _, *many, _ = places.shape
    count, ones = prod(many), (1,) * len(rest)
    b = Builder(graph, node)
    b.dtype = np.dtype(np.int64)
    within = b.add("Mod", [places, b.constant(length)], places.shape)  # positions may count from the end
    within = b.reshape(within, (samples, count, *ones))
    if rest:
        wide = (samples, count, *rest)
        within = b.add("Expand", [within, b.constant(wide)], wide)
    b.dtype = data.dtype
    taken = b.add("GatherElements", [data, within], within.shape, axis=1)
    b.finish(node, b.reshape(taken, (samples, *many, *rest)))
    return True


def _beside_counts(positions: gs.Tensor, data: gs.Tensor) -> gs.Tensor | None:
    """Positions that are concatenated with sample indices to pairs (B, …, 2); None for other positions."""
    maker = positions.inputs[0] if positions.inputs else None
    if maker is None or maker.op != "Concat" or len(maker.inputs) != 2 or not all(map(is_known, (*maker.inputs, data))):
        return None
    counts, places = maker.inputs
    rank = len(places.shape)
    if (
        rank < 2
        or places.shape[-1] != 1
        or maker.attrs["axis"] % rank != rank - 1
        or not isinstance(counts, gs.Constant)
    ):
        return None
    counted = np.arange(data.shape[0]).reshape(-1, *(1,) * (rank - 1))
    return places if np.array_equal(counts.values, np.broadcast_to(counted, places.shape)) else None
