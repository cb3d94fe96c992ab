"""Find the batch axis of each input of an ONNX file, and sizes for its open dimensions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product

import numpy as np
import onnx
import torch

from tailor_ir.errors import ImportFailed
from tailor_ir.graph import NO_BATCH
from tailor_ir.reading.trace import TRACE_BATCH

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
        told = ", ".join(f"'{name}' {each}" for name, each in sizes.items()) or "none"
        raise ImportFailed(f"network: inputs {told}; allowed: inputs whose first axis is the same batch; export it so")
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
