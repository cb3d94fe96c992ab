"""Pooling that rounds its output up, in the form that ncnn computes as ONNX does.

ncnn divides by the whole kernel where ONNX divides by the part of it that is over the map, and a kernel that is larger than
the map reads beyond it (not a number, or infinite).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import helper

POOLS = ("AveragePool", "MaxPool")


def fit_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, whose pools with `ceil_mode` have kernels no larger than their padded maps; changed in place."""
    rounding = [(node, found) for node in model.graph.node if (found := _attributes(node)).get("ceil_mode")]
    if not rounding:
        return model
    shapes = _shapes(model)
    for node, found in rounding:
        kernel = found["kernel_shape"]
        pads = found.get("pads", [0] * (2 * len(kernel)))
        if found.get("count_include_pad") and not any(pads):
            _set(node, "count_include_pad", 0)  # there are none to include
        sizes = shapes.get(node.input[0], ())[2:]
        if len(sizes) != len(kernel) or any(step != 1 for step in found.get("dilations", ())):
            continue
        before, after = pads[: len(kernel)], pads[len(kernel) :]
        maps = [size + first + last for size, first, last in zip(sizes, before, after, strict=True)]
        if all(size > 0 for size in sizes) and any(side > size for side, size in zip(kernel, maps, strict=True)):
            _set(node, "kernel_shape", [min(side, size) for side, size in zip(kernel, maps, strict=True)])
    return model


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    if node.op_type not in POOLS:
        return {}
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _set(node: onnx.NodeProto, name: str, value: int | Sequence[int]) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes of values; 0 for an open size."""
    return dict(_known(onnx.shape_inference.infer_shapes(model).graph))


def _known(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[int, ...]]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        yield value.name, tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
