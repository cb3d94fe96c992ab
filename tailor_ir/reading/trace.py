"""Convert a user's network (nn.Module or ONNX file) to an ONNX model whose initializers carry the network's own names.

The TorchScript exporter merges initializers of equal value, so layers that only start equal would share one tensor.
Therefore a copy of the module with distinct values is exported, and the real values are restored by name.
"""

import copy
import io
import logging
import math
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from torch import nn

from tailor_ir.errors import ImportFailed, first_line
from tailor_ir.graph import Tensors
from tailor_ir.reading.inputs import ExampleInputs
from tailor_ir.reading.places import export_refusal
from tailor_ir.reading.symbolics import more_operators
from tailor_ir.reading.torch_functions import WrittenOut, complex_as_pairs
from tailor_ir.reading.value_reads import ValueReads, has_names, names_in, tensors_in

OPSET = 17  # the newest opset that onnx2torch's converters cover
LARGEST_PROTOBUF = 2**31 - 1  # bytes; the limit of the format
TRACE_BATCH = 3  # unlikely to equal another dimension, so that the batch axis is recognisable
DIFFERENCE = (
    1e-6  # of the values of one tensor of the probe from those of the tensor before; float32 resolves it near 0.5
)
CONTAINERS = (OrderedDict, dict, list, set)
PLAIN_SETTINGS = {"_attn_implementation_internal": "eager", "use_cache": False}
"""Settings of transformers' configurations for tracing: attention that uses the given mask, and no caches as outputs."""


def trace_module(
    model: nn.Module, examples: ExampleInputs, samples: int = TRACE_BATCH
) -> tuple[onnx.ModelProto, Tensors]:
    """ONNX model of `model` in eval mode with BatchNorm kept, and the tensors of its state by ONNX initializer name.

    samples: batch size of the traced graph.
    """
    _refuse_too_large(f"network '{type(model).__name__}'", sum(t.nbytes for t in model.state_dict().values()))
    held = model.state_dict().items()
    state = {name: (torch.view_as_real(t) if t.is_complex() else t).detach().clone() for name, t in held}
    exported, read = _exported(model, examples, samples, frozenset())
    if read:  # values that Python reads become part of the trace, so they have to be the real ones
        exported, _ = _exported(model, examples, samples, read)
    return exported, state


def _exported(
    model: nn.Module, examples: ExampleInputs, samples: int, kept: frozenset[str]
) -> tuple[onnx.ModelProto, frozenset[str]]:
    """ONNX model of a copy with distinct values (except the `kept` tensors), and the names of tensors that Python read."""
    probe = copied(model).eval()
    pairs = complex_as_pairs(probe)
    for part in probe.modules():
        inner = part._modules.get("_orig_mod")
        if inner is not None:  # a part wrapped by torch.compile is traced uncompiled
            part.forward = inner.forward
    _make_values_unique(probe, kept)
    reads = ValueReads({**dict(probe.named_parameters()), **dict(probe.named_buffers())})
    output_names = _take_tensors(probe, examples, reads, pairs)
    buffer = io.BytesIO()
    try:
        with (
            warnings.catch_warnings(),
            torch.no_grad(),
            more_operators(OPSET),
            uncompiled(),
            plain_attention(),
            plain_transformers(probe),
            _quiet_exporter(),
        ):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                probe,
                examples.batches(samples),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                opset_version=OPSET,
                input_names=list(examples.names),
                verbose=True,  # nodes keep their source lines
            )
    except Exception as error:
        raise ImportFailed(export_refusal(model, error, OPSET)) from error
    names = (names for names in reads.places.values() if names.isdisjoint(examples.names))
    exported = onnx.load_from_string(buffer.getvalue())
    _refuse_randomness(f"network '{type(model).__name__}'", exported.graph)
    _name_outputs(exported.graph, output_names)
    return exported, frozenset[str]().union(*names)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    exporter_log = logging.getLogger("torch.onnx")
    level, printed = exporter_log.level, torch._C._jit_is_onnx_log_enabled()
    exporter_log.setLevel(logging.CRITICAL)
    torch._C._jit_set_onnx_log_enabled(False)  # it prints whole graphs if an operator cannot be exported
    try:
        yield
    finally:
        exporter_log.setLevel(level)
        torch._C._jit_set_onnx_log_enabled(printed)


def copied(model: nn.Module) -> nn.Module:
    """A copy of a module whose attributes may be computed tensors, as with torch.nn.utils.weight_norm.

    Empty containers, such as the dozen that each module has for hooks, are copied first, since `deepcopy` is slow with them.
    """
    copies: dict[int, Any] = {}
    for value in (value for module in model.modules() for value in vars(module).values()):
        if isinstance(value, torch.Tensor) and not value.is_leaf:
            copies[id(value)] = value.detach().clone()
        elif type(value) in CONTAINERS and not value:
            copies[id(value)] = type(value)()
    return copy.deepcopy(model, copies)


def _refuse_too_large(where: str, size: int) -> None:
    if size > LARGEST_PROTOBUF:
        raise ImportFailed(
            f"{where}: weights of {size / 2**30:.2f} GiB; allowed: {LARGEST_PROTOBUF / 2**30:.2g} GiB, the limit of ONNX's "
            "format; give a smaller network, or one part of it"
        )


@contextmanager
def uncompiled() -> Iterator[None]:
    """While inside, functions wrapped by torch.compile are traced uncompiled."""
    settings = sys.modules.get("torch._dynamo.config")  # None if nothing was compiled
    with (
        torch.compiler.set_stance("force_eager"),
        settings.patch(error_on_nested_jit_trace=False) if settings is not None else nullcontext(),
    ):
        yield


def _refuse_randomness(where: str, graph: onnx.GraphProto) -> None:
    """ImportFailed: a dropout stays on in eval mode."""
    for node in graph.node:
        if node.op_type == "Dropout" and len(node.input) > 2:  # dropout that is off is not exported
            raise ImportFailed(
                f"{where}: operator 'Dropout' at '{node.name}' draws random numbers in eval mode, too; allowed: dropout that "
                "is off in eval mode, as F.dropout(x, p, self.training); draw samples outside of the network"
            )


def _name_outputs(graph: onnx.GraphProto, names: Sequence[str]) -> None:
    """Give the network's outputs the module's names; outputs whose name is taken keep theirs."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken |= {one.name for one in (*graph.input, *graph.initializer, *graph.output)}
    made = {name for node in graph.node for name in node.output}
    if len(names) != len(graph.output):
        return
    new = {
        one.name: name for one, name in zip(graph.output, names, strict=True) if one.name in made and name not in taken
    }
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]
    for one in graph.output:
        one.name = new.get(one.name, one.name)


def _take_tensors(
    module: nn.Module, examples: ExampleInputs, reads: ValueReads, pairs: Sequence[torch.Tensor]
) -> list[str]:
    """Replace `forward` by a function that takes only the examples and returns plain tensors.

    Other arguments are left out because the exporter would trace their defaults. The returned list holds the names of the
    results and is filled when the module is called.
    """
    forward = module.forward
    output_names: list[str] = []

    def of_tensors(*given: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        for name, tensor in zip(examples.names, given, strict=True):
            reads.add(name, tensor)
        torch._C._jit_set_onnx_log_enabled(False)  # the exporter turns it on and would print the whole graph
        with reads, WrittenOut(pairs):  # reads by the exporter itself do not count
            answer = examples.call(forward, given)
            found = tuple(tensors_in(answer))
        if not found:
            raise ImportFailed("it gives no real tensors; allowed: real numbers (torch.view_as_real of complex ones)")
        output_names[:] = names_in(answer) if has_names(answer) else []
        return found[0] if len(found) == 1 else found

    module.forward = of_tensors
    return output_names


def _configurations(model: nn.Module) -> list[object]:
    """Configurations of Hugging Face's transformers that a network holds."""
    library = sys.modules.get("transformers.configuration_utils")  # None if the library was never imported
    held = [vars(part).get("config") for part in model.modules()] if library is not None else []
    kind = library.PreTrainedConfig if library is not None else ()
    return list({id(config): config for config in held if isinstance(config, kind)}.values())


def gives_caches(model: nn.Module) -> bool:
    """Whether a network of Hugging Face's transformers returns caches for its next call by default."""
    return any(vars(config).get("use_cache") for config in _configurations(model))


@contextmanager
def plain_transformers(model: nn.Module) -> Iterator[None]:
    """While inside, networks of Hugging Face's transformers compute attention by ordinary operators and return no caches."""
    before = [
        (config, name, vars(config)[name])
        for config in _configurations(model)
        for name in PLAIN_SETTINGS.keys() & vars(config).keys()
    ]
    try:
        for config, name, _ in before:
            setattr(config, name, PLAIN_SETTINGS[name])
        yield
    finally:
        for config, name, value in before:
            setattr(config, name, value)


@contextmanager
def plain_attention() -> Iterator[None]:
    """While inside, torch's transformer layers use ordinary operators instead of a fused one that no exporter knows."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _make_values_unique(module: nn.Module, kept: frozenset[str]) -> None:
    """Fill the tensors of a module's state with noise around 0.5, each from another place on."""
    named = module.state_dict().items()  # other buffers are exported by value
    changed = [tensor for name, tensor in named if tensor.is_floating_point() and name not in kept]
    entries = len(changed) + max((tensor.numel() for tensor in changed), default=0)
    noise = torch.rand(entries, generator=torch.Generator().manual_seed(0)) * 0.1 + 0.5
    with torch.no_grad():
        for number, tensor in enumerate(changed):
            tensor.copy_(noise[number : number + tensor.numel()].reshape(tensor.shape))


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
        where = f"network '{path}': tensor '{tensor.name}' is stored in '{location}'"
        target = (folder / location).resolve()
        if not target.is_relative_to(folder) or target.is_dir():
            raise ImportFailed(f"{where}; allowed: files inside the model's own folder; save the model as one file")
        _refuse_absent_data(where, target, tensor)
        try:
            onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        except Exception as error:  # the reader raises file errors and those of its own checks
            raise ImportFailed(
                f"{where}, which cannot be read ({first_line(error)}); copy it again, or save the model as one file"
            ) from error
        tensor.data_location = onnx.TensorProto.DEFAULT
        del tensor.external_data[:]


def _refuse_absent_data(where: str, target: Path, tensor: onnx.TensorProto) -> None:
    """ImportFailed: the file does not exist, or ends before the tensor does."""
    if not target.is_file():
        raise ImportFailed(f"{where}, which is not there; copy it beside the model, or save the model as one file")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        start, length = int(entries.get("offset", 0)), int(entries.get("length", _stored_bytes(tensor)))
    except ValueError as error:
        raise ImportFailed(f"{where} at a place that is no number ({error}); save the model again") from error
    size = target.stat().st_size
    if start < 0 or length != _stored_bytes(tensor) or start + length > size:
        raise ImportFailed(
            f"{where} from byte {start}, {length} bytes of a file of {size}; allowed: {_stored_bytes(tensor)} bytes that are "
            "there; copy it again (an interrupted copy, or a pointer of Git LFS, is short)"
        )


def _tensors_in(message: Message, where: str, *, but: str = "") -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors inside a message, each with a description of its holder; `but`: the field of the message to skip."""
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
    if (
        tensor.data_type not in onnx.TensorProto.DataType.values()
        or not tensor.data_type
        or min(tensor.dims, default=0) < 0
    ):
        raise ImportFailed(
            f"network: tensor '{tensor.name}' of type {tensor.data_type}, shape {[*tensor.dims]}; export it again"
        )
    if tensor.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4, onnx.TensorProto.FLOAT4E2M1):
        return -(-math.prod(tensor.dims) // 2)
    return math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
