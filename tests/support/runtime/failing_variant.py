"""A SubNet that crashes in the runtime when it is told to: real ONNX files, a real error of onnxruntime."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest, FileFacts

CRASHES_FROM = 100.0
"""An input with a value from here on makes the SubNet fail; its index leads out of a table."""


def make_first_fail(folder: Path) -> tuple[str, str]:
    """Put such a SubNet in the place of the bundle's first one. Returns its digest and that of the second one."""
    first = BundleManifest.from_json((folder / BUNDLE_FILE).read_bytes()).subnets[0]
    net = first.nets["onnx"]
    model = _model(net.input.name, first.input_shape, net.output.name, net.output.shape[-1] or 1)
    return put_first(folder, model.SerializeToString())


def put_first(folder: Path, content: bytes) -> tuple[str, str]:
    """Let the bundle's first SubNet have another file. Returns its digest and that of the second one."""
    manifest = BundleManifest.from_json((folder / BUNDLE_FILE).read_bytes())
    first, second = manifest.subnets[:2]
    name = first.nets["onnx"].files[0]
    (folder / name).write_bytes(content)
    facts = FileFacts(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    changed = manifest.model_copy(update={"files": {**manifest.files, name: facts}})
    (folder / BUNDLE_FILE).write_text(changed.to_json())
    return first.digest, second.digest


def _model(taken: str, shape: tuple[int, ...], given: str, classes: int) -> onnx.ModelProto:
    logits_1K = np.arange(classes, dtype=np.float32)[None]
    nodes = [
        helper.make_node("ReduceMax", [taken], ["largest"], keepdims=0),
        helper.make_node("Div", ["largest", "limit"], ["share"]),
        helper.make_node("Cast", ["share"], ["index"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["index", "one"], ["row"]),
        helper.make_node("Gather", ["table", "row"], [given], axis=0),
    ]
    tensors = {"limit": np.float32(CRASHES_FROM), "one": np.array([1], np.int64), "table": logits_1K}
    graph = helper.make_graph(
        nodes,
        "fails",
        [helper.make_tensor_value_info(taken, TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, (1, classes))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
