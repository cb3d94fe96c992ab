"""Networks in ONNX files, in the form that the pipeline takes: the first axis of all inputs and outputs is the batch.

Inputs with a constant value (`model.constants`) become stored tensors. Whole numbers are taken as samples have them, in int64
or float32. States are inputs whose value is that of an output for the sample before.

Legend: B batch, K classes of a target.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tailor_ir
from tasks.base.errors import UserError
from tasks.data.batches import tensors
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.samples import AnyForm, SampleForm, SeveralInputs
from tasks.data.settings import GivenNetwork
from tasks.evaluation.models.outputs import check_shapes, sizes_text
from tasks.evaluation.models.settings import ModelSettings, check_network_file

Sizes = tuple[int | str | None, ...]
"""The sizes of a value: a number, the name of an open size, or None for an open one without a name."""
REAL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
BATCH = "batch"
"""The name of the batch axis of a network in the pipeline's form."""
OF_STATES = re.compile(r"(^|[_./])(in|out|input|output|prev|previous|next|new|past|present|initial|final)(?=$|[_./\d])")
"""Parts of names that tell a state before a sample from the one after it."""
JOINED = "heads"
"""Name of the output that joins several heads, unless the file has a value of this name."""


def network_of_file(
    settings: ModelSettings, classes: int, form: AnyForm, problem: LearningProblem = CLASSIFICATION
) -> onnx.ModelProto:
    """The network of a file, with one output: if samples have several targets, the logits of all heads side by side.

    UserError: the file does not exist, or its inputs or outputs do not fit the data. ImportFailed: it cannot be read.
    """
    path = settings.path
    assert path is not None
    where = f"model file '{path}'"
    check_network_file(path)
    model = tailor_ir.load_onnx(path)
    _store_constants(model, settings.constants)
    inputs = _inputs_of(model.graph)
    wanted = form.inputs if isinstance(form, SeveralInputs) else dict.fromkeys([*inputs][:1], form)
    if tuple(inputs) != tuple(wanted):
        raise UserError(
            where,
            f"{len(inputs)} inputs ({', '.join(inputs)})",
            allowed=f"{', '.join(form.names)}, in this order" if form.names else f"one, of {form.called}",
            next_step=_advice(inputs, wanted),
        )
    for name, value in inputs.items():
        _take_type(where, model.graph, value, wanted[name])
    given = dict(zip(inputs, tensors(form.blank(1)), strict=True))
    if not _has_batch_first(model.graph):
        _bring_batch_first(model.graph, tailor_ir.batch_axes(model, given), where)
    for value in _inputs_of(model.graph).values():
        _check_input(where, value, wanted[value.name], form)
    taken = _taken_outputs(where, [value.name for value in model.graph.output], settings.outputs, classes, problem)
    _keep(where, model.graph, taken, problem.heads)
    check_shapes(where, [_sizes(value) for value in model.graph.output], classes, problem, form.side)
    return model


def _advice(inputs: Mapping[str, onnx.ValueInfoProto], wanted: Mapping[str, object]) -> str:
    """What to do if the data lack an input, or have others."""
    missing = next((name for name in inputs if name not in wanted), None)
    if missing is None:
        return f"name the inputs in the network's order: data.names=[{','.join(inputs)}]"
    return (
        f"add an array '{missing}' to the data; or model.constants={{{missing}: 0}}, its value for all samples; or, if an "
        f"output is its value for the next sample, model.states={{{missing}: OUTPUT}}"
    )


def _inputs_of(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    """Inputs without a stored value, by name."""
    stored = {tensor.name for tensor in graph.initializer}
    return {value.name: value for value in graph.input if value.name not in stored}


def given_network(settings: ModelSettings) -> GivenNetwork:
    """The inputs of a file that samples have, in the file's order, and those that are states.

    UserError: a constant or a state is no input of the file.
    """
    assert settings.path is not None
    graph = onnx.load(settings.path, load_external_data=False).graph
    inputs = {name: value for name, value in _inputs_of(graph).items() if name not in settings.constants}
    states = _states_of(inputs, graph.output) if settings.states is None else settings.states
    outputs = [value.name for value in graph.output]
    for name, output in states.items():
        if name not in inputs or output not in outputs:
            allowed = f"INPUT of {', '.join(inputs)}: OUTPUT of {', '.join(outputs)}"
            raise UserError("model.states", f"{{{name}: {output}}}", allowed=allowed)
    return GivenNetwork(path=settings.path, inputs=tuple(inputs), states=states, constants=settings.constants)


def _states_of(inputs: Mapping[str, onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]) -> dict[str, str]:
    """Inputs and outputs of one shape and alike names, such as h and hn, state and stateN, cache_in and cache_out."""
    found = {}
    for name, value in inputs.items():
        alike = [one.name for one in outputs if _are_alike(name, one.name) and _fit(_sizes(value), _sizes(one))]
        if len(alike) == 1:
            found[name] = alike[0]
    return found


def _are_alike(name: str, output: str) -> bool:
    plain, after = (OF_STATES.sub("", one.lower()).strip("_./") for one in (name, output))
    return bool(plain) and after in (plain, f"{plain}n", f"{plain}_n", f"{plain.removesuffix('0')}n")


def _fit(first: tuple[int | None, ...] | None, second: tuple[int | None, ...] | None) -> bool:
    """Whether two values can have one shape."""
    if first is None or second is None:
        return True
    return len(first) == len(second) and all(
        None in pair or pair[0] == pair[1] for pair in zip(first, second, strict=True)
    )


def _store_constants(model: onnx.ModelProto, constants: Mapping[str, float]) -> None:
    """Make inputs with a constant value stored tensors; open sizes become 1. UserError: there is no such input."""
    inputs = _inputs_of(model.graph)
    for name, number in constants.items():
        if name not in inputs:
            raise UserError("model.constants", f"'{name}'", allowed=f"inputs of the file: {', '.join(inputs)}")
        kind = helper.tensor_dtype_to_np_dtype(inputs[name].type.tensor_type.elem_type)
        shape = [size or 1 for size in _sizes(inputs[name]) or ()]
        model.graph.initializer.append(numpy_helper.from_array(np.full(shape, number, kind), name))
    kept = [value for value in model.graph.input if value.name not in constants]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _take_type(where: str, graph: onnx.GraphProto, value: onnx.ValueInfoProto, form: SampleForm) -> None:
    """Let an input of whole numbers take the type of samples: int64 for words, else float32. UserError: words for real
    numbers.
    """
    kind = value.type.tensor_type
    if form.words is not None and kind.elem_type in REAL:
        got = f"takes {TensorProto.DataType.Name(kind.elem_type)}"
        raise UserError(where, got, allowed="INT64, numbers of words", next_step="export it with these")
    wanted = TensorProto.FLOAT if form.words is None else TensorProto.INT64
    if kind.elem_type in (*REAL, wanted):
        return
    tailor_ir.note_type(value)
    readers = [node for one in _graphs(graph) for node in one.node if value.name in node.input]
    if not all(node.op_type == "Cast" and node.attribute[0].i in REAL for node in readers):
        inner = _renamed(graph, value.name, "given")
        graph.node.insert(0, helper.make_node("Cast", [value.name], [inner], name=inner, to=kind.elem_type))
    kind.elem_type = wanted


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and all graphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for part in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(part)


def _renamed(graph: onnx.GraphProto, name: str, suffix: str) -> str:
    """Give a value another name in all nodes, not as an input or output of the network, and return it."""
    new = _unused(graph, f"{name}/{suffix}")
    for one in _graphs(graph):
        for value in () if one is graph else one.output:
            value.name = new if value.name == name else value.name
        for node in one.node:
            for names in (node.input, node.output):
                names[:] = [new if own == name else own for own in names]
    return new


def _has_batch_first(graph: onnx.GraphProto) -> bool:
    """Whether the file says that the first axis of each input and output is the batch. Other names of open sizes may be it."""
    inputs, outputs = ([_named_sizes(one) for one in part] for part in (_inputs_of(graph).values(), graph.output))
    if len(inputs) == 1 and all(one is None or one for one in outputs):
        batch = (inputs[0] or (None,))[0]
        return not isinstance(batch, str) or not any(batch in (one or ())[1:] for one in outputs)
    firsts = {(one or (None,))[0] for one in inputs}
    if len(firsts) > 1 or not all(inputs) or not all(outputs):
        return False
    (batch,) = firsts
    return all(batch not in (one or ())[1:] and ((one or (None,))[0] == batch or batch is None) for one in outputs)


def _named_sizes(value: onnx.ValueInfoProto) -> Sizes | None:
    if not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(
        size or dim.dim_param or None
        for size, dim in zip(_sizes(value) or (), value.type.tensor_type.shape.dim, strict=True)
    )


def _bring_batch_first(graph: onnx.GraphProto, batching: tailor_ir.Batching, where: str) -> None:
    """Move the batch axis of each input and output to the front. UserError: an input is the same for all samples."""
    pairs = list(zip(_inputs_of(graph).values(), batching.inputs, strict=True))
    fixed = max(((_sizes(value) or ())[axis] or 0 for value, axis in pairs if axis != tailor_ir.NO_BATCH), default=0)
    for value, axis in pairs:
        if axis == tailor_ir.NO_BATCH:
            raise UserError(
                where,
                f"input '{value.name}' has no axis of samples",
                allowed="inputs whose entries along one axis are samples",
                next_step=f"give its value for all samples: model.constants={{{value.name}: 0}}",
            )
        dims = value.type.tensor_type.shape.dim
        if axis:
            inner = _renamed(graph, value.name, "given")
            order = [*range(1, axis + 1), 0, *range(axis + 1, len(dims))]
            graph.node.insert(0, helper.make_node("Transpose", [value.name], [inner], name=inner, perm=order))
        _bring_first(dims, axis)
        dims[0].CopyFrom(onnx.TensorShapeProto.Dimension(**({"dim_value": fixed} if fixed else {"dim_param": BATCH})))
    for value, found in zip(graph.output, batching.outputs, strict=True):
        if found is None or found <= 0:
            continue
        dims = value.type.tensor_type.shape.dim
        if not dims:
            raise UserError(where, f"output '{value.name}' has no shape", next_step="export it with shapes of outputs")
        inner, order = _renamed(graph, value.name, "found"), [found, *(n for n in range(len(dims)) if n != found)]
        graph.node.append(helper.make_node("Transpose", [inner], [value.name], name=f"{inner}/first", perm=order))
        _bring_first(dims, found)


def _bring_first(dims: Sequence[onnx.TensorShapeProto.Dimension], axis: int) -> None:
    """Move an entry of a shape to the front."""
    before = [onnx.TensorShapeProto.Dimension.FromString(one.SerializeToString()) for one in dims]
    for place, one in zip(dims, [before[axis], *before[:axis], *before[axis + 1 :]], strict=True):
        place.CopyFrom(one)


def sizes_of_file(path: Path) -> tuple[int | None, ...]:
    """The sizes of one sample of a file's first input; None for an open size, () if the file gives no shape."""
    graph = onnx.load(path, load_external_data=False).graph
    first = next(iter(_inputs_of(graph).values()), None)
    return () if first is None else (_sizes(first) or ())[1:]


def _taken_outputs(
    where: str, given: Sequence[str], asked: Sequence[str] | None, classes: int, problem: LearningProblem
) -> Sequence[str]:
    """Names of the used outputs: one, or one per target in the targets' order. UserError: the choice is unclear or invalid."""
    heads = problem.heads
    if problem.takes_any and asked is None:
        return given
    if asked is not None:
        if set(asked) <= set(given) and (problem.takes_any or len(asked) in (1, len(heads))):
            return asked
        count = f"one, or {len(heads)} in the order of data.targets," if heads else "one"
        raise UserError("model.outputs", f"[{', '.join(asked)}]", allowed=f"{count} of {', '.join(given)}")
    if len(given) == 1:
        return given
    if heads and set(heads) <= set(given):
        return tuple(heads)
    if heads and len(given) == len(heads) and set(heads).isdisjoint(given):
        return given
    raise UserError(
        where,
        f"gives {len(given)} outputs ({', '.join(given)})",
        allowed=problem.output_text(classes) + (", or an output (B, K) for each target" if heads else ""),
        next_step=f"name what is taken: model.outputs=[{','.join(f'OUTPUT_OF_{name}' for name in heads) or 'OUTPUT'}]",
    )


def _keep(where: str, graph: onnx.GraphProto, names: Sequence[str], heads: Mapping[str, int]) -> None:
    """Keep the named outputs of a network; of several heads, one output with all of them side by side.

    UserError: a head is not (B, K) of its target.
    """
    given = {value.name: value for value in graph.output}
    if not heads:
        kept_outputs = [given[name] for name in names]
        del graph.output[:]
        graph.output.extend(kept_outputs)
        return
    kept = onnx.ValueInfoProto()
    kept.CopyFrom(given[names[0]])
    if len(names) > 1:
        for name, target in zip(names, heads, strict=True):
            _check_head(where, given[name], target, heads[target])
        kept.name = _unused(graph, JOINED)
        kept.type.tensor_type.shape.dim[1].dim_value = sum(heads.values())
        graph.node.append(onnx.helper.make_node("Concat", names, [kept.name], name=kept.name, axis=1))
    del graph.output[:]
    graph.output.append(kept)


def _check_head(where: str, value: onnx.ValueInfoProto, target: str, classes: int) -> None:
    sizes = _sizes(value)
    if sizes is None or len(sizes) != 2 or sizes[1] != classes:
        raise UserError(
            where,
            f"output '{value.name}' for target '{target}' is {'open' if sizes is None else sizes_text(sizes)}",
            allowed=f"(B, {classes}), a number for each class of '{target}'",
            next_step="export it so, or give the outputs in the order of data.targets: model.outputs=[OUTPUT,OUTPUT]",
        )


def _unused(graph: onnx.GraphProto, name: str) -> str:
    """The name, extended by underscores while the graph has a value or a node of this name."""
    used = {one for node in graph.node for one in (*node.output, node.name)}
    used |= {value.name for value in (*graph.input, *graph.initializer)}
    while name in used:
        name += "_"
    return name


def _sizes(value: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    """The sizes of a value, None for each open size; None if the file gives no shape."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims)


def _check_input(where: str, value: onnx.ValueInfoProto, form: SampleForm, samples: AnyForm) -> None:
    """Raise UserError if the file's input differs from that of the data's samples."""
    wanted, sizes = form.shape, _sizes(value)
    if sizes is None:
        return
    same_axes = len(sizes) == 1 + len(wanted)
    if not same_axes or any(size not in (None, own) for size, own in zip(sizes[1:], wanted, strict=True)):
        raise UserError(
            where,
            f"takes {'x'.join('?' if size is None else str(size) for size in sizes[1:])}",
            allowed=f"{form.line}, the data's {samples.called}",
            next_step=form.advice(
                {value.name: sizes[1:]}, "export", "data.words" if samples.names else "data.resolution"
            ),
        )
