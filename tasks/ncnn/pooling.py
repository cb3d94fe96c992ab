"""Pooling that rounds its output up, in the form that ncnn computes as ONNX does.

ncnn divides by the whole kernel where ONNX divides by the part of it that is over the map. Kernels are no larger than their
padded maps: SubNets are written so (`tailor_ir/ops/pooling.py`).
"""

from typing import Any

import onnx
from onnx import helper


def fit_pools(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, whose average pools with `ceil_mode` count no padding where there is none to count; changed in place."""
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
