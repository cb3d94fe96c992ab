"""Bring ONNX files into one form: functions inlined, quantisation read as float32, one floating-point type.

Read networks in half, double or bfloat16 as float32: weights, constants, casts and declared types.

Find the batch axis of each input of an ONNX file, and sizes for its open dimensions.

Detect BatchNorms that an exporter folded into preceding layers: they can be neither trained nor recalibrated.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import nn

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import NO_BATCH
from tailor_ir.reading.inputs import ExampleInputs
from tailor_ir.reading.trace import TRACE_BATCH, copied

OTHERS = {TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64", TensorProto.BFLOAT16: "bfloat16"}
"""Floating-point types that are read as float32, with torch's names."""
LOW = (torch.float16, torch.bfloat16)
GIVEN_TYPE = "autotailor.given_type"
"""Key, in a value's metadata, of the element type that it had before a rewriting of the file."""
EXCHANGED = frozenset(("float16", "float32", "float64", "int32", "int64", "int8", "uint8"))
"""Element types that exported files take and give."""
TYPE_ATTRIBUTES = frozenset(("to", "dtype", "stash_type", "output_dtype", "softmax_precision"))
WEIGHT_AXES = 2
"""Least number of axes of weights; statistics, scales and biases have one."""
LARGEST = float(np.finfo(np.float32).max)


def read_as_float32(model: onnx.ModelProto) -> dict[str, str]:
    """Make all floating-point numbers of a model float32, in place. Returns input name -> declared type, if it was another.

    Finite numbers beyond float32's range become its largest number, so that a mask does not become infinite.
    """
    given = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    for graph in _graphs(model.graph):
        _convert(graph)
    return {name: OTHERS[kind] for name, kind in given.items() if kind in OTHERS}


def weights_type(model: onnx.ModelProto) -> str:
    """ "float16" if most weights of a model, which has not been read as float32, are stored so; else ""."""
    counts = Counter[int]()
    for graph in _graphs(model.graph):
        constants = (each.t for node in graph.node for each in node.attribute if each.HasField("t"))
        for tensor in (*graph.initializer, *constants):
            if len(tensor.dims) >= WEIGHT_AXES:
                counts[tensor.data_type] += math.prod(tensor.dims)
    return "float16" if counts and counts.most_common(1)[0][0] == TensorProto.FLOAT16 else ""


def note_type(value: onnx.ValueInfoProto) -> None:
    """Keep the element type of an input or output in its metadata, before it is given another one."""
    value.metadata_props.add(key=GIVEN_TYPE, value=_type_of(value))


def given_value(value: onnx.ValueInfoProto) -> tuple[str, str]:
    """Name and element type of an input or output of a given file; type "" if exported files have one of their own."""
    kind = next((one.value for one in value.metadata_props if one.key == GIVEN_TYPE), _type_of(value))
    return value.name, kind if kind in EXCHANGED else ""


def _type_of(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type.elem_type
    if kind in (TensorProto.UNDEFINED, TensorProto.BFLOAT16):
        return ""
    return onnx.helper.tensor_dtype_to_np_dtype(kind).name


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
    given_weights: "float16" if most weights were.
    """

    module: nn.Module
    examples: ExampleInputs
    reference: tuple[nn.Module, ExampleInputs]
    given_types: tuple[str, ...] = ()
    given_weights: str = ""
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
        given_weights="float16" if _is_in_half(module) else "",
        remarks=(float_remark(", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))),),
    )


def _is_in_half(module: nn.Module) -> bool:
    counts = Counter[torch.dtype]()
    for one in module.parameters():
        if one.ndim >= WEIGHT_AXES:
            counts[one.dtype] += one.numel()
    return bool(counts) and counts.most_common(1)[0][0] == torch.float16


def float_remark(kinds: str) -> str:
    """Remark on a network that is read as float32."""
    return f"the network is in {kinds}: it is read as float32, and its SubNets are float32"


def float32_copy(module: nn.Module, examples: ExampleInputs) -> tuple[nn.Module, ExampleInputs] | None:
    """A float32 copy of a module and its examples; None if the code of the module fixes another type."""
    same = copied(module).float().eval()
    plain = replace(examples, tensors=tuple(map(as_float32, examples.tensors)))
    try:
        with torch.no_grad():
            plain.call(same, plain.batches(1))
    except (AssertionError, RuntimeError, TypeError, ValueError):  # operands of two types, or a check by the module
        return None
    return same, plain


MOST_LAYOUTS = 16
DimensionSizes = tuple[int | str | None, ...]
"""Dimensions of an input: a size, the name of an open size, or None for an open size without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLayout:
    """One way to read the inputs of a file.

    shapes: all sizes are known. batch_axes: batch axis by input name, NO_BATCH for an input that all samples share.
    constants: inputs that become constants, with their values.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    batch_axes: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Batch size: size of the batch axis in the first input that has one."""
        axes = ((shape, self.batch_axes.get(name, 0)) for name, shape in self.shapes.items())
        return next(shape[axis] for shape, axis in axes if axis != NO_BATCH)

    @property
    def batch_first(self) -> bool:
        """Whether the first axis of some input is the batch."""
        return any(self.batch_axes.get(name, 0) == 0 for name in self.shapes)

    def with_samples(self, samples: int) -> "InputLayout":
        """The same inputs with another batch size."""
        axes = {name: self.batch_axes.get(name, 0) for name in self.shapes}
        shapes = {
            name: tuple(samples if axis == axes[name] else size for axis, size in enumerate(shape))
            for name, shape in self.shapes.items()
        }
        return replace(self, shapes=shapes)


def layouts_of(model: onnx.ModelProto, examples: Mapping[str, torch.Tensor]) -> list[InputLayout]:
    """Possible layouts of a file's inputs, the likeliest first.

    An open first axis is the batch, and so are open axes of the same name in other inputs (states are (layers, batch, size)).
    Fallbacks have a batch of one sample on any axis of size 1; layouts in which the batch is the first axis of some
    input come first. Integers without an axis (a rate, a mode) become constants with the example's value.
    ImportFailed: no layout is possible, or all layouts leave sizes open.
    """
    sizes = {name: _sizes(info) for name, info in inputs_of(model).items()}
    constants = {name: _constant(name, info, examples) for name, info in inputs_of(model).items() if _is_setting(info)}
    sizes = {name: each for name, each in sizes.items() if name not in constants}
    found: dict[tuple[tuple[int, ...], int], None] = {}
    ways = list(_ways(tuple(sizes.values())))
    for first in (True, False):
        found |= dict.fromkeys(way for way in ways if (0 in way[0]) == first and {*way[0]} != {NO_BATCH})
    if not found:
        described = ", ".join(f"'{name}' {each}" for name, each in sizes.items()) or "none"
        raise ImportFailed(
            f"network: inputs {described}; allowed: inputs whose first axis is the same batch; export it so"
        )
    layouts: list[InputLayout] = []
    refused: list[ImportFailed] = []
    for axes, samples in islice(found, MOST_LAYOUTS):
        batch_axes = dict(zip(sizes, axes, strict=True))
        try:
            shapes = {n: _fixed(n, each, batch_axes[n], samples, examples.get(n)) for n, each in sizes.items()}
        except ImportFailed as error:
            refused.append(error)
        else:
            layouts.append(InputLayout(shapes=shapes, batch_axes=batch_axes, constants=constants))
    if not layouts:
        raise refused[0]
    return layouts


def inputs_of(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Inputs that a model is called with (without a stored value), by name."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return {one.name: one for one in model.graph.input if one.name not in stored}


def _sizes(info: onnx.ValueInfoProto) -> DimensionSizes:
    dims = info.type.tensor_type.shape.dim
    return tuple(each.dim_value if each.dim_value > 0 else each.dim_param or None for each in dims)


def _is_setting(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.tensor_type
    whole = kind.elem_type and onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).kind in "iub"
    return bool(whole) and kind.HasField("shape") and not kind.shape.dim


def _constant(name: str, info: onnx.ValueInfoProto, examples: Mapping[str, torch.Tensor]) -> np.ndarray:
    if name not in examples:
        raise ImportFailed(
            f"network: input '{name}' is a single number; allowed: one whose value is known; give examples of all inputs, and "
            f"it is kept as this constant"
        )
    kind = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    return examples[name].detach().cpu().numpy().reshape(()).astype(kind)


def _ways(sizes: Sequence[DimensionSizes]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Pairs (batch axis of each input, number of samples), the likeliest first."""
    firsts = [each[0] for each in sizes if each]
    closed = {size for size in firsts if isinstance(size, int)}
    first = next((each for each in sizes if each), (None,))
    is_open = not isinstance(first[0], int)
    if is_open:
        named = [_same(each, first[0]) for each in sizes]
        if NO_BATCH not in named:
            yield tuple(named), TRACE_BATCH
    if len(closed) <= 1 and all(sizes):
        yield (0,) * len(sizes), closed.pop() if closed else TRACE_BATCH
    if is_open:
        yield tuple(named), TRACE_BATCH
    for samples, anywhere in ((1 if is_open else int(first[0] or 1), False), (1, False), (TRACE_BATCH, True)):
        choices = [
            [
                at
                for at, size in enumerate(each)
                if size == samples or (not isinstance(size, int) and (anywhere or not at))
            ]
            for each in sizes
        ]
        yield from ((axes, samples) for axes in product(*([*each, NO_BATCH] for each in choices)))


def _same(sizes: DimensionSizes, batch: int | str | None) -> int:
    """The axis of an input that is open under the name of the batch; without names, its first open axis."""
    if batch is not None and batch in sizes:
        return sizes.index(batch)
    if sizes and not isinstance(sizes[0], int):
        return 0
    return sizes.index(None) if batch is None and None in sizes else NO_BATCH


def _fixed(name: str, sizes: DimensionSizes, axis: int, samples: int, example: torch.Tensor | None) -> tuple[int, ...]:
    """Sizes of an input: the batch size on the batch axis, else the file's size, else the example's."""
    shape = []
    for position, size in enumerate(sizes):
        if position == axis:
            shape.append(samples)
        elif isinstance(size, int):
            shape.append(size)
        elif example is not None and example.ndim == len(sizes):
            shape.append(example.shape[position])
        else:
            raise ImportFailed(
                f"network: input '{name}' leaves its shape open ({[*sizes]}); "
                "give an example input of full resolution, or export it with a fixed shape"
            )
    return tuple(shape)


def leaves_batch_open(model: onnx.ModelProto, layout: InputLayout) -> bool:
    """Whether a model takes any batch size and is read with several samples."""
    axes = {name: layout.batch_axes.get(name, 0) for name in layout.shapes}
    sizes = [
        _sizes(info)[axes[name]] for name, info in inputs_of(model).items() if axes.get(name, NO_BATCH) != NO_BATCH
    ]
    return layout.samples > 1 and not any(isinstance(size, int) for size in sizes)


def pin_squeezes(model: onnx.ModelProto, layout: InputLayout) -> onnx.ModelProto:
    """The model with axes written into Squeezes that have none, if it is read with one sample.

    The Squeezes would otherwise drop the batch; the written axes have size 1 for every batch size.
    """
    where = {info.name: layout.batch_axes.get(info.name, NO_BATCH) for info in model.graph.input}
    sizes = {info.name: _sizes(info) for info in model.graph.input if where[info.name] != NO_BATCH}
    squeezes = [node for node in model.graph.node if node.op_type == "Squeeze" and len(node.input) == 1]
    if not squeezes or not sizes or any(layout.shapes[name][where[name]] != 1 for name in sizes):
        return model
    pinned = onnx.ModelProto()
    pinned.CopyFrom(model)
    del pinned.graph.value_info[:]
    for info in pinned.graph.input:
        dims = info.type.tensor_type.shape.dim
        for axis, size in enumerate(layout.shapes.get(info.name, ())):
            if info.name not in sizes or axis != where[info.name]:
                dims[axis].dim_value = size
            else:
                dims[axis].dim_param = "batch"
    found = onnx.shape_inference.infer_shapes(pinned, data_prop=True)
    known = {info.name: info.type.tensor_type for info in (*found.graph.value_info, *found.graph.input)}
    for number, node in enumerate(pinned.graph.node):
        kind = known.get(node.input[0]) if node.op_type == "Squeeze" and len(node.input) == 1 else None
        if kind is not None and kind.HasField("shape"):
            ones = [axis for axis, size in enumerate(kind.shape.dim) if size.dim_value == 1]
            name = f"{node.output[0]}/axes{number}"
            pinned.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(ones, np.int64), name))
            node.input.append(name)
    del pinned.graph.input[:]
    pinned.graph.input.extend(model.graph.input)
    return pinned


MADE_BY_EXPORTER = re.compile(r"onnx::\w+_\d+")  # else torch names tensors after their modules
NORMALISATIONS = {
    *("BatchNormalization", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "LpNormalization"),
    *("MeanVarianceNormalization", "Sqrt"),  # norms of earlier opsets consist of several operators
}
FEW = 2  # with fewer convolutions the network is not convolutional
ADVICE = (
    "statistics of its SubNets cannot be recalibrated, and they lose accuracy; export with torch.onnx.export(…, dynamo=False, "
    "training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False)"
)


def _shifted(graph: onnx.GraphProto) -> frozenset[str]:
    """Values that are shifted or scaled by a stored number per channel, in an operator separate from the layer."""
    made = {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant" and node.attribute}
    stored = {tensor.name: tensor for tensor in graph.initializer} | made
    return frozenset(
        value
        for node in graph.node
        if node.op_type in ("Add", "Div", "Mul", "Sub")
        for value, shift in (node.input, node.input[::-1])
        if shift in stored and sum(size > 1 for size in stored[shift].dims) == 1 and len(stored[shift].dims) > 1
    )


def folded_norms(model: onnx.ModelProto) -> tuple[str, ...]:
    """A remark for a file in which BatchNorms were folded, or seem to have been; () for other files."""
    convolutions = [node for node in model.graph.node if node.op_type in ("Conv", "ConvTranspose")]
    shifted = _shifted(model.graph)
    biased = [node for node in convolutions if (len(node.input) > 2 and node.input[2]) or node.output[0] in shifted]
    folded = [
        node
        for node in biased
        if len(node.input) > 2 and all(MADE_BY_EXPORTER.fullmatch(name) for name in node.input[1:])
    ]
    if folded:
        return (f"BatchNorm was folded into {len(folded)} of {len(convolutions)} convolutions: {ADVICE}",)
    if len(biased) >= FEW and not any(node.op_type in NORMALISATIONS for node in model.graph.node):
        return (f"no BatchNorm, and {len(biased)} convolutions with biases: if it was folded into them, {ADVICE}",)
    return ()
