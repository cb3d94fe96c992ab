"""Convert an ONNX model to the IR: constants folded, shapes known, weights kept apart. BatchNorm is never folded."""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import torch

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Graph, Tensors
from tailor_ir.reading.batches import OTHER_BATCH, follow_fixed_batch, follow_samples, may_hold_samples
from tailor_ir.reading.files.frozen_graph import GraphEnds, refuse_unread_inputs, to_graph
from tailor_ir.reading.files.layouts import InputLayout, layouts_of, leaves_batch_open, pin_squeezes
from tailor_ir.reading.files.preparing import at_least, imported, quiet_surgeon, refuse_unsupported
from tailor_ir.reading.files.weights import unshare_vectors, weight_names, weights_in_constants
from tailor_ir.reading.folding import cleaned, constants_to_tensors, fold, lay_aside, restore
from tailor_ir.reading.normal_forms import (
    drop_default_states,
    drop_idle,
    normalise,
    resolve_identities,
    separate_outputs,
    share_rows,
)
from tailor_ir.reading.slices import reorder_blocks, split_slices
from tailor_ir.reading.trace import OPSET
from tailor_ir.reading.written_out.file_forms import inline_defined, write_out

CONTROL_FLOW = {"If", "Loop", "Scan"}
PASSES: tuple[Callable[[gs.Graph], None], ...] = (
    write_out,
    resolve_identities,
    drop_idle,
    reorder_blocks,
    split_slices,
)
"""Rewrites of a folded graph, in this order."""


@quiet_surgeon()
def import_onnx(
    model: onnx.ModelProto,
    state: Mapping[str, torch.Tensor] | None = None,
    layout: InputLayout | None = None,
    known: Collection[str] = (),
    again: Callable[[int], onnx.ModelProto] | None = None,
) -> tuple[Graph, Tensors]:
    """The IR graph and its tensors.

    `state`: values of the network; they replace those of the model. `layout`: sizes and batch axes of the inputs; None: the
    likeliest layout. `known`: operators that may be in the graph; () allows all. `again` traces the network once more, for
    another batch size, to find constants that follow the batch; without it, only files with an open batch can be compared.
    Weights that a file stores as constants are trained like others.
    """
    layout = layout or layouts_of(model, {})[0]
    surgeon, weights, values = _folded(model, state, layout)
    if may_hold_samples(surgeon, layout.samples):
        if again is not None or leaves_batch_open(model, layout):
            other = layout.with_samples(OTHER_BATCH)
            traced = model if again is None else again(OTHER_BATCH)
            follow_samples(surgeon, _folded(traced, state, other)[0], layout.samples, other.samples)
        else:
            follow_fixed_batch(surgeon, layout.samples)
    for rewrite in PASSES:
        rewrite(surgeon)
    share_rows(surgeon, layout.samples)
    restore(surgeon, values)
    normalise(surgeon, layout.samples)
    if all(node.op == "Identity" for node in surgeon.nodes):
        refuse_unread_inputs(surgeon, frozenset())
    separate_outputs(surgeon)
    return to_graph(surgeon, weights, state, GraphEnds(layout=layout, known=known))


def _folded(
    model: onnx.ModelProto, state: Mapping[str, torch.Tensor] | None, layout: InputLayout
) -> tuple[gs.Graph, frozenset[str], dict[str, np.ndarray]]:
    """The folded graph without weight values; the names of the weights; their values."""
    refuse_unsupported(model)
    model = inline_defined(pin_squeezes(at_least(model, OPSET), layout))
    weights = weight_names(model, state)
    surgeon = imported(model)
    _fix_inputs(surgeon, layout)
    resolve_identities(surgeon)
    separate_outputs(surgeon)
    cleaned(surgeon)
    if state is None:
        constants_to_tensors(surgeon)
        weights |= weights_in_constants(surgeon)
        weights |= unshare_vectors(surgeon, weights)
    values = lay_aside(surgeon, weights)
    surgeon = fold(surgeon, layout.samples)
    if state is None and (computed := weights_in_constants(surgeon)):
        weights |= computed | unshare_vectors(surgeon, computed)
        values |= lay_aside(surgeon, weights)
    drop_default_states(surgeon)
    _refuse_control_flow(surgeon)
    return surgeon, weights, values


def _refuse_control_flow(graph: gs.Graph) -> None:
    """ImportFailed: the graph has control flow. Folding has already resolved branches that depend on shapes alone."""
    for node in graph.nodes:
        if node.op in CONTROL_FLOW:
            where = f"operator '{node.op}' at '{node.name or node.outputs[0].name}'"
            raise ImportFailed(f"{where}: control flow; allowed: feed-forward networks; trace it with fixed branches")


def _fix_inputs(graph: gs.Graph, layout: InputLayout) -> None:
    """Set the sizes of all inputs to the layout's; inputs that the layout makes constant are removed."""
    changed = False
    for tensor in list(graph.inputs):
        if tensor.name in layout.constants:
            tensor.to_constant(layout.constants[tensor.name])
            changed = True
        elif tuple(tensor.shape or ()) != (shape := layout.shapes[tensor.name]):
            tensor.shape, changed = list(shape), True
    graph.inputs = [tensor for tensor in graph.inputs if tensor.name not in layout.constants]
    for output in (output for node in graph.nodes for output in node.outputs if changed):
        output.shape = None  # was inferred for the old input shapes
