"""From a user's network (nn.Module or ONNX file) to an ONNX model whose initializers carry the network's own names.

The TorchScript exporter merges initializers of equal value, so layers that merely start equal would share one tensor.
A copy of the module with all-different values is exported instead, and the real values are put back by name.
"""

import copy
import io
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import onnx
import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from torch import nn

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Tensors
from tailor_ir.reading.inputs import ExampleInputs
from tailor_ir.reading.places import export_refusal
from tailor_ir.reading.symbolics import more_operators
from tailor_ir.reading.value_reads import ValueReads, tensors_in
from tailor_ir.reading.written_out.functions import WrittenOut, complex_as_pairs

OPSET = 17  # the newest that onnx2torch's converters cover
LARGEST_PROTOBUF = 2**31 - 1  # bytes; the limit of the format
TRACE_BATCH = 3  # unlikely to equal another dimension, so that the batch axis can be told from others


def trace_module(model: nn.Module, examples: ExampleInputs) -> tuple[onnx.ModelProto, Tensors]:
    """ONNX of `model` in eval mode, BatchNorm kept, and the tensors of its state by ONNX initializer name."""
    _refuse_too_large(f"network '{type(model).__name__}'", sum(t.nbytes for t in model.state_dict().values()))
    held = model.state_dict().items()
    state = {name: (torch.view_as_real(t) if t.is_complex() else t).detach().clone() for name, t in held}
    exported, read = _exported(model, examples, frozenset())
    if read:  # what Python reads of them is part of the trace, so these have to be the real values
        exported, _ = _exported(model, examples, read)
    return exported, state


def _exported(
    model: nn.Module, examples: ExampleInputs, kept: frozenset[str]
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """ONNX of a copy whose values are all different but for the `kept` ones, and the names of tensors that Python read."""
    probe = _copy(model).eval()
    pairs = complex_as_pairs(probe)
    _make_values_unique(probe, kept)
    reads = ValueReads({**dict(probe.named_parameters()), **dict(probe.named_buffers())})
    _take_tensors(probe, examples, reads, pairs)
    buffer = io.BytesIO()
    try:
        with (
            warnings.catch_warnings(),
            torch.no_grad(),
            more_operators(OPSET),
            plain_attention(),
            _quiet_exporter(),
        ):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                probe,
                examples.batches(TRACE_BATCH),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                opset_version=OPSET,
                input_names=list(examples.names),
                verbose=True,  # nodes keep the lines that they come from
            )
    except Exception as error:
        raise ImportFailed(export_refusal(model, error, OPSET)) from error
    names = (names for names in reads.places.values() if names.isdisjoint(examples.names))
    return onnx.load_from_string(buffer.getvalue()), frozenset[str]().union(*names)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        exporter_log.setLevel(level)


def _copy(model: nn.Module) -> nn.Module:
    """A copy of a module, whose attributes may be computed tensors (those of torch.nn.utils.weight_norm)."""
    found = (value for module in model.modules() for value in vars(module).values())
    computed = [value for value in found if isinstance(value, torch.Tensor) and not value.is_leaf]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})


def _refuse_too_large(where: str, size: int) -> None:
    if size > LARGEST_PROTOBUF:
        raise ImportFailed(
            f"{where}: weights of {size / 2**30:.2f} GiB; allowed: {LARGEST_PROTOBUF / 2**30:.2g} GiB, the limit of ONNX's "
            "format; give a smaller network, or one part of it"
        )


def _take_tensors(module: nn.Module, examples: ExampleInputs, reads: ValueReads, pairs: Sequence[torch.Tensor]) -> None:
    """Leave the module its examples as arguments (the exporter traces defaults of others too), and plain tensors as results."""
    forward = module.forward

    def of_tensors(*given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        for name, tensor in zip(examples.names, given, strict=True):
            reads.add(name, tensor)
        torch._C._jit_set_onnx_log_enabled(False)  # the exporter turns it on, and would print the whole graph
        with reads, WrittenOut(pairs):  # the exporter's own reads say nothing of the network
            found = tuple(tensors_in(examples.call(forward, given)))
        if not found:
            raise ImportFailed("it gives no real tensors; allowed: tensors of real numbers (torch.view_as_real of complex ones)")
        return found[0] if len(found) == 1 else found

    module.forward = of_tensors


@contextmanager
def plain_attention() -> Iterator[None]:
    """While inside, torch's transformer layers compute by ordinary operators instead of one that no exporter knows."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _make_values_unique(module: nn.Module, kept: frozenset[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():  # other buffers are exported by value
            if tensor.is_floating_point() and name not in kept:
                noise = torch.rand(tensor.shape, generator=generator).to(tensor)
                tensor.copy_(noise * 0.1 + 0.5)


def load_onnx(path: Path) -> onnx.ModelProto:
    """Parse and check an ONNX file. External data is accepted only from inside the file's own folder."""
    where = f"network '{path}'"
    if not path.is_file():
        raise ImportFailed(f"{where}: no such file; give the path of an .onnx file")
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:
        raise ImportFailed(f"{where}: not a readable ONNX file ({type(error).__name__}); export it again") from error
    if not model.graph.node:
        raise ImportFailed(f"{where}: holds no operators; export it again")
    _inline_external_data(model, path)
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ImportFailed(f"{where}: not valid ONNX ({str(error).splitlines()[0]}); export it again") from error
    return model


def _inline_external_data(model: onnx.ModelProto, path: Path) -> None:
    folder = path.parent.resolve()
    for where, tensor in chain(
        _tensors_in(model.graph, "the graph", but="initializer"), _tensors_in(model, "the model", but="graph")
    ):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ImportFailed(
                f"{where}: its tensor is stored in another file; "
                "allowed: external data of initializers; save the model as one file"
            )
    _refuse_too_large(f"network '{path}'", sum(map(_stored_bytes, model.graph.initializer)))
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        location = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        target = (folder / location).resolve()
        if not target.is_relative_to(folder) or not target.is_file():
            raise ImportFailed(
                f"network '{path}': tensor '{tensor.name}' is stored in '{location}'; "
                "allowed: files inside the model's own folder; save the model as one file"
            )
        onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _tensors_in(message: Message, where: str, *, but: str = "") -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors inside a message, each with who holds it; `but`: the message's field that is left out."""
    if isinstance(message, onnx.NodeProto):
        where = f"operator '{message.op_type}' at '{message.name or next(iter(message.output), '')}'"
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE or field.name == but:
            continue
        for part in [value] if isinstance(value, Message) else value:
            if isinstance(part, onnx.TensorProto):
                yield where, part
            else:
                yield from _tensors_in(part, where)


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    return math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
