"""ONNX files: checked for the pipeline before anything else reads them."""

from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from tasks.data.samples import AnyForm, SampleForm, SeveralInputs
from tasks.errors import UserError
from tasks.models.answers import check_shapes
from tasks.problems import CLASSIFICATION, LearningProblem


def check_onnx(path: Path, classes: int, form: AnyForm, problem: LearningProblem = CLASSIFICATION) -> Path:
    """The file. UserError when it cannot be read, or has inputs or outputs that do not fit the data."""
    if not path.is_file():
        raise UserError(f"model file '{path}'", "does not exist", next_step="choose another with model.path=FILE.onnx")
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except (DecodeError, ValueError, OSError) as error:
        raise UserError(f"model file '{path}'", "is not a readable ONNX model", next_step="export it again") from error
    if not graph.node or not graph.output:
        raise UserError(f"model file '{path}'", "has no graph", next_step="export it again")
    stored = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    wanted = form.inputs if isinstance(form, SeveralInputs) else {value.name: form for value in inputs[:1]}
    if tuple(value.name for value in inputs) != tuple(wanted):
        names = ", ".join(value.name for value in inputs)
        allowed = f"{', '.join(form.names)}, in this order" if form.names else f"one, of {form.called}"
        raise UserError(f"model file '{path}'", f"{len(inputs)} inputs ({names})", allowed=allowed)
    for value in inputs:
        _check_input(path, value, wanted[value.name], form.called)
    check_shapes(f"model file '{path}'", [_sizes(value) for value in graph.output], classes, problem, form.size[-1])
    return path


def _sizes(value: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    """The sizes of a value, None for each that is open; None where the file does not say how many there are."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    dims = value.type.tensor_type.shape.dim
    return tuple(dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None for dim in dims)


def _check_input(path: Path, value: onnx.ValueInfoProto, form: SampleForm, called: str) -> None:
    """UserError when the file takes other samples than the data are."""
    wanted, sizes, element = form.shape, _sizes(value), value.type.tensor_type.elem_type
    if form.words is not None and element != onnx.TensorProto.INT64:
        got = f"takes {onnx.TensorProto.DataType.Name(element)}"
        raise UserError(
            f"model file '{path}'", got, allowed="INT64, numbers of words", next_step="export it with these"
        )
    if sizes is None:
        return
    same_axes = len(sizes) == 1 + len(wanted)
    if not same_axes or any(size not in (None, own) for size, own in zip(sizes[1:], wanted, strict=True)):
        raise UserError(
            f"model file '{path}'",
            f"takes {'x'.join('?' if size is None else str(size) for size in sizes[1:])}",
            allowed=f"{form.line}, the data's {called}",
            next_step="set data.resolution and data.channels, or export it for these",
        )
