"""A bundle whose SubNets are there in several formats, and what their own files answer."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ncnn
import numpy as np
import onnxruntime

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import (
    BUNDLE_FILE,
    BundledNet,
    BundledSubNet,
    BundleFormat,
    BundleManifest,
    BundleRun,
    FileFacts,
    NetFigures,
)
from adaptive_runtime.bundle.chains import ChainTensor
from profiling_agents.backends.ncnn import precision_options
from tailor_ir import SuperNet
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.quantise.qdq import Quantiser
from tests.support.runtime.bundled import SETTINGS

Array = np.ndarray
SLOWER: Mapping[BundleFormat, float] = {"onnx": 1.0, "onnx_int8": 0.25, "ncnn": 0.5, "ncnn_bf16": 0.4}
LOST: Mapping[BundleFormat, float] = {"onnx": 0.0, "onnx_int8": 0.2, "ncnn": 0.05, "ncnn_bf16": 0.1}
NCNN_SETTINGS: dict[str, bool | int | str] = {"num_threads": 1, "use_vulkan_compute": False}


def with_formats(net: SuperNet, manifest: BundleManifest, folder: Path, x_NCHW: Array) -> BundleManifest:
    """A bundle for onnxruntime with its SubNets in int8, and for ncnn in fp32 and bf16, too. x_NCHW: for ranges of int8.

    Beside the files of fp32 they take `SLOWER` of the time, and lose `LOST` of the accuracy.
    """
    subnets = tuple(_in_all(net, subnet, folder, x_NCHW) for subnet in manifest.subnets)
    runs: dict[BundleFormat, BundleRun] = {
        "onnx_int8": manifest.runs["onnx"].model_copy(update={"precision": "int8", "tolerance": 0.25}),
        "ncnn": _ncnn_run("fp32", 1e-3),
        "ncnn_bf16": _ncnn_run("bf16", 0.2),
    }
    return _rewritten(manifest, folder, subnets, runs)


def with_ncnn(net: SuperNet, manifest: BundleManifest, folder: Path) -> BundleManifest:
    """A bundle for onnxruntime with its SubNets for ncnn in fp32, too, as fast and as accurate."""
    subnets = []
    for subnet in manifest.subnets:
        own = subnet.nets["onnx"]
        figures = NetFigures(
            accuracy=subnet.accuracy, latency_ms=subnet.likely_ms, latency_error=0.1, memory=subnet.memory
        )
        in_ncnn = _in_ncnn(onnx_of(net, subnet.config, None, 1), subnet.digest, own, folder)
        nets: dict[BundleFormat, BundledNet] = {"onnx": own, "ncnn": in_ncnn.model_copy(update={"figures": figures})}
        subnets.append(subnet.model_copy(update={"nets": nets}))
    return _rewritten(manifest, folder, tuple(subnets), {"ncnn": _ncnn_run("fp32", 1e-3)})


def _rewritten(
    manifest: BundleManifest, folder: Path, subnets: tuple[BundledSubNet, ...], more: Mapping[BundleFormat, BundleRun]
) -> BundleManifest:
    runs = {**manifest.runs, **more}
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name != BUNDLE_FILE)
    facts = {file.name: FileFacts(sha256=sha256_of(file), bytes=file.stat().st_size) for file in files}
    found = BundleManifest.model_validate({**dict(manifest), "subnets": subnets, "runs": runs, "files": facts})
    (folder / BUNDLE_FILE).write_text(found.to_json())
    return found


def _ncnn_run(precision: Any, tolerance: float) -> BundleRun:
    return BundleRun(
        runtime="ncnn",
        version=ncnn.__version__,
        threads=1,
        precision=precision,
        settings={**NCNN_SETTINGS, **precision_options(precision)},
        measured=False,
        tolerance=tolerance,
    )


def _in_all(net: SuperNet, subnet: BundledSubNet, folder: Path, x_NCHW: Array) -> BundledSubNet:
    model = onnx_of(net, subnet.config, None, 1)
    own = subnet.nets["onnx"]
    int8 = f"{subnet.digest}.int8.onnx"
    feeds = [{own.input.name: x[None]} for x in x_NCHW]
    with tempfile.TemporaryDirectory() as ranges:
        quantiser = Quantiser.calibrated(model, feeds, Path(ranges), reduce_range=True)
        (folder / int8).write_bytes(quantiser.quantise(model))
    of_ncnn = _in_ncnn(model, subnet.digest, own, folder)
    exact, rounded = (_onnx_answers(folder / name, x_NCHW) for name in (own.files[0], int8))
    difference = float(np.abs(exact - rounded).max() / np.abs(exact).max())
    nets: dict[BundleFormat, BundledNet] = {
        "onnx": own,
        "onnx_int8": BundledNet(files=(int8,), input=own.input, output=own.output, relative_difference=difference),
        "ncnn": of_ncnn,
        "ncnn_bf16": of_ncnn,
    }
    known = {name: one.model_copy(update={"figures": _figures(subnet, name)}) for name, one in nets.items()}
    return subnet.model_copy(update={"nets": {**known, "onnx": own}})


def _in_ncnn(model: bytes, digest: str, own: BundledNet, folder: Path) -> BundledNet:
    converted = convert(model)
    param, weights = (f"{digest}.ncnn.{end}" for end in ("param", "bin"))
    (folder / param).write_bytes(converted.param)
    (folder / weights).write_bytes(converted.bin)
    return BundledNet(
        files=(param, weights),
        input=ChainTensor(name="in0", shape=own.input.shape),
        output=ChainTensor(name="out0", shape=own.output.shape),
        relative_difference=0.0,
    )


def _figures(subnet: BundledSubNet, form: BundleFormat) -> NetFigures:
    return NetFigures(
        accuracy={split: share - LOST[form] for split, share in subnet.accuracy.items()},
        latency_ms=SLOWER[form] * subnet.likely_ms,
        latency_error=0.1,
        memory=subnet.memory,
    )


def answers_in(subnet: BundledSubNet, form: BundleFormat, folder: Path, x_NCHW: Array) -> Array:
    """Logits (N, K) by the files themselves; x in the SubNet's shape."""
    files = subnet.nets[form].files
    if form in ("onnx", "onnx_int8"):
        return _onnx_answers(folder / files[0], x_NCHW)
    net = ncnn.Net()
    options = precision_options("bf16" if form == "ncnn_bf16" else "fp32")
    for name, value in {**NCNN_SETTINGS, **options}.items():
        setattr(net.opt, name, value)
    net.load_param(str(folder / files[0]))
    net.load_model(str(folder / files[1]))
    found = []
    for x in x_NCHW:
        extractor = net.create_extractor()
        extractor.input("in0", ncnn.Mat(x).clone())
        found.append(np.array(extractor.extract("out0")[1]))
        del extractor
    net.clear()
    return np.stack(found)


def _onnx_answers(file: Path, x_NCHW: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(SETTINGS["intra_op_num_threads"])
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    return np.concatenate([session.run(None, {taken.name: x[None]})[0] for x in x_NCHW])
