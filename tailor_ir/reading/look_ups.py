"""Reading at constant positions along several axes, which exporters write as GatherND: a look-up along one axis."""

from math import prod

import numpy as np
import onnx_graphsurgeon as gs

from tailor_ir.reading.scatter import coordinates_of, is_known, linear_within_samples
from tailor_ir.reading.written_out.file_forms import Builder


def read_block(graph: gs.Graph, node: gs.Node) -> bool:
    """A GatherND as a Gather; reading everything, as masks by sample and position do, is a Reshape.

    False where positions are computed, or nothing is known of them.
    """
    data, positions = node.inputs
    if not isinstance(positions, gs.Constant) or not positions.values.size or not is_known(data):
        return False
    shape, index = tuple(data.shape), positions.values
    shared = int(node.attrs.get("batch_dims", 0))  # first axes that data and positions have in common
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
