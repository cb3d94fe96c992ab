"""ONNX files whose nodes are in the order with the least peak memory, and which onnxruntime runs in that order.

onnxruntime does not keep the order of a file that it optimises: it walks depth first from the outputs, and nodes that an
optimisation creates change places. Therefore the file is optimised first, for the processor at hand, and its nodes are ordered
afterwards. A session that optimises nothing and executes by priority (`session_options`) runs them in this order: no node has a
priority, so the first ready node in the file runs first. "Memory reuse" is off: with it, memory of a tensor waits for the next
tensor of its shape, and no other tensor can use it. Sizes are measured in a run.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from solvers.schedules import Placement, Schedule, ScheduledStep, Workload, best_order, place
from tailor_ir.memory.layouts import IN_PLACE, patches_bytes

VIEWS = frozenset(("Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"))
BLOCKED = "com.microsoft.nchwc"
SUMMED = 3  # index of the operand that is added to a convolution's result
QUIET = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """model: optimised, its nodes in the planned order. given_bytes: the peak in the optimised file's own order.

    placement: offsets of all tensors in one block, in the planned order.
    """

    model: onnx.ModelProto
    schedule: Schedule
    given_bytes: int
    placement: Placement


def session_options(*, optimised: bool = True) -> onnxruntime.SessionOptions:
    """Options for sessions of one thread. optimised: the file is already; its nodes run in order, without memory reuse."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = QUIET
    if optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_reuse = False
    return options


def plan_file(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> PlannedFile:
    """Optimise a model and order its nodes. feeds: its inputs, for one run that measures sizes."""
    optimised = _optimised(model)
    load = _workload(optimised, _shapes(optimised, feeds))
    schedule = best_order(load)
    nodes = [optimised.graph.node[at] for at in schedule.order]
    given = load.peak(range(len(nodes)))
    planned = onnx.ModelProto()
    planned.CopyFrom(optimised)
    del planned.graph.node[:]
    planned.graph.node.extend(nodes)
    return PlannedFile(
        model=planned, schedule=schedule, given_bytes=given, placement=place(load.intervals(schedule.order))
    )


def _optimised(model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        options = session_options(optimised=False)
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _shapes(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Bytes and shape of every computed value, measured in a run."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    known = {value.name for value in shown.graph.output}
    names = [name for node in model.graph.node for name in node.output if name]
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    session = onnxruntime.InferenceSession(
        shown.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )
    values = zip(names, session.run(names, dict(feeds)), strict=True)
    return {name: (value.nbytes, value.shape) for name, value in values}


def _workload(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, tuple[int, ...]]]) -> Workload:
    """The nodes as steps. Weights and inputs belong to the caller."""
    number: dict[str, int] = {}
    for node in model.graph.node:
        for name in (*node.input, *node.output):
            number.setdefault(name, len(number))
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    buffer_of = list(range(len(number)))
    bytes_ = [shapes.get(name, (0, ()))[0] for name in number]
    steps = []
    for node in model.graph.node:
        reads = tuple(dict.fromkeys(number[name] for name in node.input if name))
        if node.op_type in VIEWS:
            buffer_of[number[node.output[0]]] = buffer_of[reads[0]]
        own = shapes[node.output[0]]
        over = [name for name in _overwritten(node) if shapes.get(name) == own and list(node.input).count(name) == 1]
        writes = [number[name] for name in node.output if name]
        if patches := _patches(node, weights, own[1]):
            writes.append(len(buffer_of))
            buffer_of.append(len(bytes_))
            bytes_.append(patches)
        steps.append(ScheduledStep(reads=reads, writes=tuple(writes), in_place=tuple(number[name] for name in over)))
    kept = [buffer_of[number[value.name]] for value in model.graph.output]
    return Workload(steps, buffer_of, bytes_, kept)


def _patches(node: onnx.NodeProto, weights: Mapping[str, tuple[int, ...]], result: tuple[int, ...]) -> int:
    """Bytes of the patches that a convolution without blocks copies while it runs."""
    if node.op_type not in ("Conv", "FusedConv") or node.domain == BLOCKED or node.input[1] not in weights:
        return 0
    shape = weights[node.input[1]]
    settings = {one.name: one for one in node.attribute}
    pads, strides = (settings[name].ints if name in settings else () for name in ("pads", "strides"))
    if not any(pads) and all(stride == 1 for stride in strides) and set(shape[2:]) == {1}:
        return 0
    return patches_bytes((*shape, *result[2:]), settings["group"].i if "group" in settings else 1)


def _overwritten(node: onnx.NodeProto) -> Sequence[str]:
    """Operands whose memory the result may reuse."""
    if node.op_type in IN_PLACE:
        return list(node.input[:1])
    return [name for name in node.input[SUMMED:] if name] if node.op_type in ("Conv", "FusedConv") else []
