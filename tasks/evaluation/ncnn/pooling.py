"""Average pooling with `ceil_mode`, rewritten such that ncnn and ONNX compute the same.

ncnn divides by the whole kernel, but ONNX by the part of the kernel over the map. Kernels are no larger than their padded maps:
SubNets are written in this way (`tailor_ir/ops/pooling.py`).
"""

from typing import Any

import onnx
from onnx import helper


def fit_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """Set `count_include_pad` to 0 in average pools with `ceil_mode` but without padding; changes and returns the model."""
    for node in model.graph.node:
        found = _attributes(node)
        if found.get("ceil_mode") and found.get("count_include_pad") and not any(found.get("pads", ())):
            kept = [attribute for attribute in node.attribute if attribute.name != "count_include_pad"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("count_include_pad", 0)])
    return model


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    if node.op_type != "AveragePool":
        return {}
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
