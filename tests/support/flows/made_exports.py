"""An export of one small network, as if a device had checked it: files without a run."""

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import BundleDevice, BundleOrigin
from tasks.base.schemas.exports import Card, ExportedFile, ExportedWinner, Exports, FileRun, FileTensor, Latency

SHAPE = (1, 3)


def made_exports(folder: Path) -> Exports:
    """One SubNet, which wins two budgets, in `folder`: what it returns are its inputs without those below zero."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("image", "answer")]
    graph = helper.make_graph([helper.make_node("Relu", ["image"], ["answer"])], "relu", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "0123456789abcdef.onnx")
    winner: dict[str, Any] = {
        "digest": "0123456789abcdef",
        "predicted_ms": 1.0,
        "predicted_accuracy": 0.5,
        "files_ok": True,
    }
    rows = tuple(
        ExportedWinner.model_validate(
            {**winner, "budget_ms": budget_ms, "measured_ms": 0.9, "within_budget": True, "accuracy": {"test": 0.5}}
        )
        for budget_ms in (2.0, 1.0)
    )
    parts: dict[str, Any] = {"winners": rows, "subnets": (_card(folder / "0123456789abcdef.onnx"),)}
    return Exports.model_construct(**parts)


def _card(file: Path) -> Card:
    image, answer = (FileTensor(name=name, shape=SHAPE) for name in ("image", "answer"))
    ends: dict[str, Any] = {"inputs": (image,), "outputs": (answer,)}
    good = ExportedFile(state="ok", sha256={file.name: sha256_of(file)})
    device = BundleDevice(
        backend="ncnn", version="1", provider="cpu", precision="fp32", threads=1, cpu_model="a processor",
        system="a system", fingerprint="f",
    )  # fmt: skip
    timed: dict[str, Any] = {"p50_ms": 0.9}
    known: dict[str, Any] = {
        "digest": file.stem,
        "files": {
            "onnx": good.model_copy(update={"run": FileRun.model_construct(**ends)}),
            "onnx_int8": ExportedFile(state="failed", reason="loses too much"),
        },
        "accuracy": {"test": 0.5},
        "latency": Latency.model_construct(**timed),
        "device": device,
        "made_from": BundleOrigin(network={"name": "a/net"}, data="digits", digests={}),
    }
    return Card.model_construct(**known)
