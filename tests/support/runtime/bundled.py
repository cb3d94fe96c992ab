"""Bundles for tests and benchmarks: real SubNets with random weights, in the files that an export writes."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import torch

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import (
    BUNDLE_FILE,
    BundleDevice,
    BundledExit,
    BundledNet,
    BundledSubNet,
    BundleManifest,
    BundleOrigin,
    BundleRun,
    CalibrationSample,
    FileFacts,
    SourceImages,
    SubNetMemory,
    half,
)
from adaptive_runtime.bundle.bundles.bundle import CALIBRATION_FILE
from adaptive_runtime.bundle.chains import SEGMENTS_FILE, ChainManifest, ChainSegment, ChainTensor, ImagePreparation
from adaptive_runtime.exits import Thresholds
from profiling_agents.messages import MIB
from tailor_ir import Config, SuperNet
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.export.bundles.extras import LABELLED, SOURCE_IMAGES_FILE, adaptable_net, write_blocks

SETTINGS: dict[str, bool | int | str] = {
    "intra_op_num_threads": 1,
    "inter_op_num_threads": 1,
    "session.intra_op.allow_spinning": "0",
}
DEVICE = BundleDevice(
    backend="onnxruntime",
    version=onnxruntime.__version__,
    provider="CPUExecutionProvider",
    precision="fp32",
    threads=1,
    cpu_model="",
    system="",
    fingerprint="",
)
OBSERVED_IMAGES = 16


class SourceData(NamedTuple):
    """Images (N, C, H, W) as SubNets take them, and labels (N,); mean and deviation of colours in [0, 1]."""

    x_NCHW: np.ndarray
    label_N: np.ndarray
    mean: tuple[float, ...] = (0.0,) * 3
    deviation: tuple[float, ...] = (1.0,) * 3


def write_plain_bundle(
    net: SuperNet,
    configs: Sequence[Config],
    folder: Path,
    thresholds: Mapping[str, Thresholds] | None = None,
    samples: int = 0,
    blocks: bool = False,
    source: SourceData | None = None,
) -> BundleManifest:
    """A bundle of SubNets for onnxruntime, with the chains of those that pass exits. thresholds: by digest.

    samples: images of the calibration sample, with torch's answers; 0: the bundle has none.

    blocks: the segments of blocks with alternatives are there, too.
    source: with which SubNets can adapt, 16 images at once; the bundle has the first 64.

    The first SubNet counts as the most accurate, and the slowest.
    """
    subnets = {net.space.digest(config): config for config in configs}
    chains = {digest: exits for digest, config in subnets.items() if len(exits := net.exits(config)) > 1}
    folder.mkdir(parents=True, exist_ok=True)
    whole = {digest: (config, None) for digest, config in subnets.items()}
    observed = None if source is None else OBSERVED_IMAGES
    net.export_together(whole, folder, chains, (net.max_config, None) if blocks else None, observed)
    rows = []
    for at, (digest, config) in enumerate(subnets.items()):
        own = (thresholds or {}).get(digest)
        chain = _write_chain(net, digest, config, folder) if digest in chains else None
        rows.append(_row(net, digest, config, folder, chain, own, at))
    if source is not None:
        rows = _adaptable(net, rows, folder, source)
    if blocks:
        inputs = np.random.default_rng(0).standard_normal(net.input_shape(net.max_config), np.float32)
        prepared = _preparation(net, net.max_config)
        assert write_blocks(net, None, prepared, folder, inputs, SETTINGS, {}) <= 1e-5
    if samples:
        (folder / CALIBRATION_FILE).write_bytes(_sample(net, subnets, samples).to_bytes())
    files = sorted(file for file in folder.iterdir() if file.name != BUNDLE_FILE)
    manifest = BundleManifest(
        batch=net.batch,
        files={file.name: FileFacts(sha256=sha256_of(file), bytes=file.stat().st_size) for file in files},
        subnets=tuple(rows),
        runs={"onnx": _run()},
        device=DEVICE,
        made_from=BundleOrigin(network={"name": "made here"}, data="none", digests={}),
        calibration=CALIBRATION_FILE if samples else None,
        source_images=None if source is None else SOURCE_IMAGES_FILE,
    )
    (folder / BUNDLE_FILE).write_text(manifest.to_json())
    return manifest


def _adaptable(net: SuperNet, rows: list[BundledSubNet], folder: Path, source: SourceData) -> list[BundledSubNet]:
    """Write what SubNets need to adapt; the rows with it."""
    prepared = _preparation(net, net.max_config, source)
    labelled = SourceImages.of(source.x_NCHW[:LABELLED], source.label_N[:LABELLED], prepared)
    (folder / SOURCE_IMAGES_FILE).write_bytes(labelled.to_bytes())
    found = []
    for row in rows:
        net_of = row.nets["onnx"]
        adaptable = adaptable_net(row.digest, OBSERVED_IMAGES, folder, source.x_NCHW[LABELLED:], SETTINGS)
        changed = {
            "nets": {"onnx": net_of.model_copy(update={"adaptable": adaptable})},
            "preparation": _preparation(net, row.config, source),
        }
        found.append(row.model_copy(update=changed))
    return found


def _sample(net: SuperNet, subnets: Mapping[str, Config], samples: int) -> CalibrationSample:
    rng = np.random.default_rng(0)
    inputs: dict[tuple[int, ...], Any] = {}
    answers: dict[tuple[str, str | None], Any] = {}
    for digest, config in subnets.items():
        shape = net.input_shape(config)[1:]
        if shape not in inputs:
            inputs[shape] = half(rng.normal(size=(samples, *shape)).astype(np.float32))
        exits = net.exits(config) if len(net.exits(config)) > 1 else ()
        for exit in (None, *exits):
            built = net.build(config if exit is None else {**config, "exit": exit}).eval()
            with torch.no_grad():
                answers[digest, exit] = built(torch.from_numpy(inputs[shape])).numpy()
    return CalibrationSample(inputs, answers)


def _run() -> BundleRun:
    return BundleRun(
        runtime="onnxruntime",
        version=onnxruntime.__version__,
        threads=1,
        precision="fp32",
        settings=SETTINGS,
        measured=True,
        tolerance=1e-4,
    )


def _row(
    net: SuperNet,
    digest: str,
    config: Config,
    folder: Path,
    chain: ChainManifest | None,
    thresholds: Thresholds | None,
    at: int,
) -> BundledSubNet:
    (taken,), (given,) = _tensors(folder / f"{digest}.onnx")
    macs = itertools.accumulate(() if chain is None else [one.macs for one in chain.segments])
    return BundledSubNet(
        digest=digest,
        config=dict(config),
        input_shape=net.input_shape(config),
        preparation=_preparation(net, config),
        nets={
            "onnx": BundledNet(
                files=(f"{digest}.onnx", WEIGHTS_FILE),
                input=taken,
                output=given,
                chain=None if chain is None else f"{digest}.segments.json",
                chain_files=() if chain is None else tuple(chain.files),
                relative_difference=0.0,
            )
        },
        macs=net.macs(config),
        parameters=net.parameters(config),
        accuracy={"test": 1.0 - at / 100},
        latency=None,
        predicted_ms=1000.0 - at,
        memory=SubNetMemory(
            weights_mib=4 * net.parameters(config) / MIB, activations_mib=net.peak_activation_bytes(config) / MIB
        ),
        exits=()
        if chain is None
        else tuple(BundledExit(exit=name, macs=until) for name, until in zip(chain.exits, macs, strict=True)),
        thresholds=thresholds,
    )


def _preparation(net: SuperNet, config: Config, source: SourceData | None = None) -> ImagePreparation:
    shape = net.input_shape(config)
    return ImagePreparation(
        colours="RGB",
        crop="none",
        resolution=net.input_shape(net.max_config)[-1],
        interpolation="none",
        mean=(0.0,) * 3 if source is None else source.mean,
        deviation=(1.0,) * 3 if source is None else source.deviation,
        size=(shape[-2], shape[-1]),
        size_interpolation="bilinear, antialiased",
    )


def _write_chain(net: SuperNet, digest: str, config: Config, folder: Path) -> ChainManifest:
    return _chain(net, digest, config, folder, f"{digest}.", f"{digest}.{SEGMENTS_FILE}", WEIGHTS_FILE)


def write_own_chain(net: SuperNet, config: Config, folder: Path) -> ChainManifest:
    """The segments of one SubNet with weights of their own, and their manifest."""
    net.export_segments(config, folder)
    return _chain(net, net.space.digest(config), config, folder, "", SEGMENTS_FILE)


def _chain(
    net: SuperNet, digest: str, config: Config, folder: Path, prefix: str, manifest_file: str, *shared: str
) -> ChainManifest:
    segments: list[ChainSegment] = []
    for at, exit in enumerate(net.exits(config)):
        inputs, outputs = _tensors(folder / f"{prefix}{at}.onnx")
        macs = net.macs({**config, "exit": exit}) - sum(one.macs for one in segments)
        segments.append(
            ChainSegment(exit=exit, file=f"{prefix}{at}.onnx", inputs=inputs, outputs=outputs, macs=max(macs, 1))
        )
    names = [*(str(one.file) for one in segments), *shared]
    manifest = ChainManifest(
        format="onnx",
        digest=digest,
        files={name: sha256_of(folder / name) for name in names},
        input=segments[0].inputs[0],
        segments=tuple(segments),
        runtime="onnxruntime",
        settings=SETTINGS,
    )
    (folder / manifest_file).write_text(manifest.to_json())
    return manifest


def _tensors(file: Path) -> tuple[tuple[ChainTensor, ...], tuple[ChainTensor, ...]]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    inputs, outputs = (
        tuple(ChainTensor(name=one.name, shape=tuple(one.shape)) for one in each)
        for each in (session.get_inputs(), session.get_outputs())
    )
    return inputs, outputs


def answers_of_files(manifest: BundleManifest, folder: Path, x_NCHW: np.ndarray) -> dict[tuple[str, str | None], Any]:
    """Logits (N, K) of each whole SubNet (exit None) and each exit, by the files themselves; x in the shape of each."""
    found: dict[tuple[str, str | None], Any] = {}
    for subnet in manifest.subnets:
        net = subnet.nets["onnx"]
        values = [{net.input.name: x[None]} for x in x_NCHW]
        whole = onnxruntime.InferenceSession(folder / net.files[0], providers=["CPUExecutionProvider"])
        found[subnet.digest, None] = np.concatenate([whole.run(None, one)[0] for one in values])
        if net.chain is None:
            continue
        for segment in ChainManifest.from_json((folder / net.chain).read_text()).segments:
            session = onnxruntime.InferenceSession(folder / str(segment.file), providers=["CPUExecutionProvider"])
            names = [one.name for one in segment.outputs]
            logits = []
            for one in values:
                given = session.run(names, {tensor.name: one[tensor.name] for tensor in segment.inputs})
                one.update(zip(names, given, strict=True))
                logits.append(given[0])
            found[subnet.digest, segment.exit] = np.concatenate(logits)
    return found
