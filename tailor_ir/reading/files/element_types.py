"""Read networks in half, double or bfloat16 as float32: weights, constants, casts and declared types."""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

from tailor_ir.reading.inputs import ExampleInputs

OTHERS = {
    TensorProto.FLOAT16: "float16",
    TensorProto.DOUBLE: "float64",
    TensorProto.BFLOAT16: "bfloat16",
}
"""Floating-point types that are read as float32, with torch's names."""
LOW = (torch.float16, torch.bfloat16)
TYPE_ATTRIBUTES = frozenset(("to", "dtype", "stash_type", "output_dtype", "softmax_precision"))
LARGEST = float(np.finfo(np.float32).max)


def read_as_float32(model: onnx.ModelProto) -> dict[str, str]:
    """Make all floating-point numbers of a model float32, in place. Returns input name -> declared type, if it was another.

    Finite numbers beyond float32's range become its largest number, so that a mask does not become infinite.
    """
    given = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    for graph in _graphs(model.graph):
        _convert(graph)
    return {name: OTHERS[kind] for name, kind in given.items() if kind in OTHERS}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and all subgraphs inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for part in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(part)


def _convert(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _convert_tensor(tensor)
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type in OTHERS:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in TYPE_ATTRIBUTES and attribute.i in OTHERS:
                attribute.i = TensorProto.FLOAT
            for tensor in [attribute.t] if attribute.HasField("t") else attribute.tensors:
                _convert_tensor(tensor)


def _convert_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in OTHERS:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(_narrowed(array), tensor.name))


def _narrowed(array: np.ndarray) -> np.ndarray:
    return np.where(np.isinf(array), array, np.clip(array, -LARGEST, LARGEST)).astype(np.float32)


def as_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A floating-point tensor as float32, by the rule of `read_as_float32`; other tensors unchanged."""
    if not tensor.is_floating_point() or tensor.dtype == torch.float32:
        return tensor
    if tensor.dtype == torch.float64:
        tensor = torch.where(tensor.isinf(), tensor, tensor.clamp(-LARGEST, LARGEST))
    return tensor.float()


def other_types(module: nn.Module, tensors: Iterable[torch.Tensor]) -> frozenset[torch.dtype]:
    """Floating-point types other than float32 among a module's parameters and buffers, and among these tensors."""
    found = (*module.parameters(), *module.buffers(), *tensors)
    return frozenset(one.dtype for one in found if one.is_floating_point() and one.dtype != torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Float32Module:
    """A module that computes in float32, and its reference for comparison: the original, or the copy with more digits.

    given_types: names of the types in which the inputs were given, in order; () if all were float32.
    """

    module: nn.Module
    examples: ExampleInputs
    reference: tuple[nn.Module, ExampleInputs]
    given_types: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def module_in_float32(module: nn.Module, examples: ExampleInputs) -> Float32Module:
    """A copy of a module in float32; the module itself if it needs no copy, or if its own code fixes another type."""
    kinds = other_types(module, examples.tensors)
    if not kinds:
        return Float32Module(module=module, examples=examples, reference=(module, examples))
    plain = float32_copy(module, examples)
    same = (module, examples)
    names = tuple(str(one.dtype).removeprefix("torch.") for one in examples.tensors)
    return Float32Module(
        module=(plain or same)[0],
        examples=(plain or same)[1],
        reference=plain if plain is not None and kinds.intersection(LOW) else same,
        given_types=names if any(name in OTHERS.values() for name in names) else (),
        remarks=(float_remark(", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))),),
    )


def float_remark(kinds: str) -> str:
    """Remark on a network that is read as float32."""
    return f"the network is in {kinds}: it is read as float32, and its SubNets and exported files are float32"


def float32_copy(module: nn.Module, examples: ExampleInputs) -> tuple[nn.Module, ExampleInputs] | None:
    """A float32 copy of a module and its examples; None if the code of the module fixes another type."""
    computed = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    held = {id(value): value.detach().clone() for value in computed if not value.is_leaf}
    same = copy.deepcopy(module, held).float().eval()
    plain = replace(examples, tensors=tuple(map(as_float32, examples.tensors)))
    try:
        with torch.no_grad():
            plain.call(same, plain.batches(1))
    except (
        AssertionError,
        RuntimeError,
        TypeError,
        ValueError,
    ):  # operands of two types, or a check by the module
        return None
    return same, plain
