"""Networks in ONNX files: checked before use, and reduced to one output if they have several.

Legend: B batch, K classes of a target.
"""

from collections.abc import Mapping, Sequence

import onnx

import tailor_ir
from tasks.base.errors import UserError
from tasks.data.problems import CLASSIFICATION, LearningProblem
from tasks.data.samples import AnyForm, SampleForm, SeveralInputs
from tasks.evaluation.models.answers import check_shapes, sizes_told
from tasks.evaluation.models.refusals import check_network_file
from tasks.evaluation.models.settings import ModelSettings

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
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in stored]
    wanted = form.inputs if isinstance(form, SeveralInputs) else {value.name: form for value in inputs[:1]}
    if tuple(value.name for value in inputs) != tuple(wanted):
        names = ", ".join(value.name for value in inputs)
        allowed = f"{', '.join(form.names)}, in this order" if form.names else f"one, of {form.called}"
        raise UserError(where, f"{len(inputs)} inputs ({names})", allowed=allowed)
    for value in inputs:
        _check_input(where, value, wanted[value.name], form)
    taken = _taken(where, [value.name for value in model.graph.output], settings.outputs, classes, problem)
    _keep(where, model.graph, taken, problem.heads)
    check_shapes(where, [_sizes(value) for value in model.graph.output], classes, problem, form.size[-1])
    return model


def _taken(
    where: str, given: Sequence[str], asked: Sequence[str] | None, classes: int, problem: LearningProblem
) -> Sequence[str]:
    """Names of the used outputs: one, or one per target in the targets' order. UserError: the choice is unclear or invalid."""
    heads = problem.heads
    if asked is not None:
        if set(asked) <= set(given) and len(asked) in (1, len(heads)):
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
        allowed=problem.output_told(classes) + (", or an output (B, K) for each target" if heads else ""),
        next_step=f"name what is taken: model.outputs=[{','.join(f'OUTPUT_OF_{name}' for name in heads) or 'OUTPUT'}]",
    )


def _keep(where: str, graph: onnx.GraphProto, names: Sequence[str], heads: Mapping[str, int]) -> None:
    """Reduce a network to one output: the named outputs side by side. UserError: one of several is not (B, K) of its target."""
    given = {value.name: value for value in graph.output}
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
            f"output '{value.name}' for target '{target}' is {'open' if sizes is None else sizes_told(sizes)}",
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
    wanted, sizes, element = form.shape, _sizes(value), value.type.tensor_type.elem_type
    if form.words is not None and element != onnx.TensorProto.INT64:
        got = f"takes {onnx.TensorProto.DataType.Name(element)}"
        raise UserError(where, got, allowed="INT64, numbers of words", next_step="export it with these")
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
