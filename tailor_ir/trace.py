"""From a user's network (nn.Module or ONNX file) to an ONNX model whose initializers carry the network's own names.

The TorchScript exporter merges initializers of equal value, so layers that merely start equal would share one tensor.
A copy of the module with all-different values is exported instead, and the real values are put back by name.
"""

import copy
import io
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import onnx
import torch
from torch import nn

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import Tensors
from tailor_ir.symbolics import more_operators

OPSET = 17  # the newest that onnx2torch's converters cover
LARGEST_PROTOBUF = 2**31 - 1  # bytes; the limit of the format
TRACE_BATCH = 3  # unlikely to equal another dimension, so that the batch axis can be told from others


def trace_module(model: nn.Module, example_input: torch.Tensor) -> tuple[onnx.ModelProto, Tensors]:
    """ONNX of `model` in eval mode, BatchNorm kept, and the tensors of its state by ONNX initializer name."""
    _refuse_too_large(f"network '{type(model).__name__}'", sum(t.nbytes for t in model.state_dict().values()))
    probe = _copy(model).eval()
    _make_values_unique(probe)
    _take_one_input(probe)
    batch = example_input[:1].expand(TRACE_BATCH, *example_input.shape[1:]).contiguous()
    buffer = io.BytesIO()
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad(), more_operators(OPSET), _plain_attention():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                probe,
                (batch,),
                buffer,  # type: ignore[arg-type]
                dynamo=False,
                training=torch.onnx.TrainingMode.PRESERVE,
                do_constant_folding=False,
                opset_version=OPSET,
                input_names=["input"],
            )
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ImportFailed(
            f"network '{type(model).__name__}': cannot be exported to ONNX ({reason}); "
            "allowed: feed-forward networks without control flow; try exporting it yourself and give the .onnx file"
        ) from error
    finally:
        exporter_log.setLevel(level)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return onnx.load_from_string(buffer.getvalue()), state


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


def _take_one_input(module: nn.Module) -> None:
    """Leave the module one argument (the exporter traces defaults of others as inputs), and let it give plain tensors."""
    forward = module.forward

    def of_one_input(x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        found = tuple(_tensors_in(forward(x)))
        return found[0] if len(found) == 1 else found

    module.forward = of_one_input


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors of a network's answer, in order: itself, or those of a dictionary, tuple or list."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors_in(part)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _tensors_in(part)


@contextmanager
def _plain_attention() -> Iterator[None]:
    """While inside, torch's transformer layers compute by ordinary operators instead of one that no exporter knows."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _make_values_unique(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in module.state_dict().values():  # other buffers are exported by value
            if tensor.is_floating_point():
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
    functions = (found for function in model.functions for found in _tensors_of_nodes(function.node))
    for where, tensor in chain(_tensors_of(model.graph), functions):
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


def _tensors_of(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """All tensors of a graph and of those inside its nodes but for the graph's own initializers, each with who holds it."""
    yield from (("the graph", part) for one in graph.sparse_initializer for part in (one.values, one.indices))
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, onnx.TensorProto]]:
    for node in nodes:
        where = f"operator '{node.op_type}' at '{node.name or node.output[0]}'"
        for attribute in node.attribute:
            sparse = (attribute.sparse_tensor, *attribute.sparse_tensors)
            parts = (part for one in sparse for part in (one.values, one.indices))
            inside = (attribute.g, *attribute.graphs)
            own = (tensor for graph in inside for tensor in graph.initializer)
            yield from ((where, tensor) for tensor in (attribute.t, *attribute.tensors, *parts, *own))
            yield from ((where, tensor) for graph in inside for _, tensor in _tensors_of(graph))


def _stored_bytes(tensor: onnx.TensorProto) -> int:
    return math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
