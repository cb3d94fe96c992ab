"""The bundle that an export writes has all that a device needs, and serves there in onnxruntime and in ncnn."""

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import adaptive_runtime
import tailor_ir
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import MOST_BYTES, BundleManifest, FileFacts, OpenBundle, half
from adaptive_runtime.bundle.chains import ChainFormat
from adaptive_runtime.pool import Variant
from profiling_agents.client import MeasureSettings, local_agent
from tailor_ir.spaces.selectors import SpaceSpec
from tasks import export
from tasks.base.artifacts import Workspace
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.exports import Exports
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.exits.policies import MeasuredExit, SubnetPolicy
from tasks.export.bundles import require_adaptable
from tests.support.fronts import write_front
from tests.support.ir.networks import small_net

QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)
SPACE: SpaceSpec = {"*.width_mult": [0.5, 1], "resolution": [8, 16], "exits": ["stage.1.block.*"]}
TOLERANCE = 1e-4


class Exported(NamedTuple):
    """A bundle from a device, and the result of the stage."""

    folder: Path
    result: Exports
    key: Path

    @property
    def manifest(self) -> BundleManifest:
        return OpenBundle.open(self.folder, self.key).manifest


@pytest.fixture(scope="module", params=["onnxruntime", "ncnn"])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(request.param)
    network = small_net(blocks=3)
    network.classifier = nn.Linear(network.classifier.in_features, 10)
    tailor_ir.compile(network, torch.randn(1, 3, 16, 16), SPACE).save(folder / "supernet")
    net = tailor_ir.load(folder / "supernet")
    search, out, key = folder / "search", folder / "out", folder / "key"
    search.mkdir()
    out.mkdir()
    key.write_text("0123456789abcdef")
    write_front(search, net, [(net.max_config, 1e6), (net.min_config, 1e6)])
    splits = load_splits(DataSettings(kind="digits", resolution=16))
    images = EvaluationData(splits["test"], splits["train"], recalibration_images=64, limit=150)
    exits = tuple(
        MeasuredExit(exit=name, alone_ms=1.0, latency_ms=1.0, accuracy={"test": 0.1 * at}, share=0.5)
        for at, name in enumerate(net.exits(net.max_config))
    )
    thresholds = {"measure": "top_probability", "thresholds": [0.3, *[None] * (len(exits) - 2)]}
    digest = net.space.digest(net.max_config)
    policy = SubnetPolicy(digest=digest, config=dict(net.max_config), exits=exits, thresholds=thresholds)
    settings = export.Settings(measure=QUICK, bundle=True, bundle_key=key, adaptable=True)
    with local_agent(request.param) as client, client.lease():
        data = {"test": images}
        found = export.run(
            export.ExportRequest(
                settings=settings, supernet=folder / "supernet", search=search, data=data, policies=[policy]
            ),
            client,
            Workspace(out=out, progress=Silent()),
        )
    return Exported(out / "bundle", Exports.model_validate(found), key)


def test_the_manifest_tells_what_the_cards_tell(exported: Exported) -> None:
    manifest, device = exported.manifest, exported.result.device
    formats: tuple[ChainFormat, ...] = ("onnx", "ncnn") if device.backend == "ncnn" else ("onnx",)
    assert tuple(manifest.runs) == formats
    run = manifest.runs[formats[-1]]
    assert manifest.own_format == formats[-1]
    assert (run.runtime, run.settings, run.threads) == (device.backend, device.settings, device.threads)
    assert manifest.device.fingerprint == device.fingerprint
    OpenBundle.open(exported.folder).verify_all()
    assert set(manifest.files) == {file.name for file in exported.folder.iterdir()} - {"bundle.json", "bundle.sig"}
    for subnet, card in zip(manifest.subnets, exported.result.subnets, strict=True):
        assert subnet.digest == card.digest
        assert subnet.config == card.config
        assert subnet.accuracy == card.accuracy
        assert subnet.latency is not None
        assert (subnet.latency.p50_ms, subnet.latency.spread) == (card.latency.p50_ms, card.latency.spread)
        assert tuple(subnet.nets) == formats
        assert all(net.relative_difference <= TOLERANCE for net in subnet.nets.values())
        assert subnet.memory.weights_mib == pytest.approx(4 * card.parameters / 2**20)
        assert subnet.memory.activations_mib > 0
    errors = [abs(one.predicted_ms / one.latency.p50_ms - 1) for one in manifest.subnets if one.latency]
    assert manifest.predicted_error == pytest.approx(np.mean(errors))


def test_exits_are_there_with_thresholds_accuracies_and_rising_latencies(exported: Exported) -> None:
    largest = exported.manifest.subnets[0]
    assert largest.thresholds is not None
    assert [one.threshold for one in largest.exits] == [0.3, None]
    assert [one.accuracy for one in largest.exits] == [{"test": 0.0}, {"test": 0.1 * 2}]
    times_ms = [one.latency_ms for one in largest.exits]
    assert None not in times_ms
    assert times_ms == sorted(times_ms, key=lambda one: one or 0.0)
    assert largest.exits[0].macs < largest.exits[1].macs


def samples(manifest: BundleManifest) -> np.ndarray:
    size = manifest.subnets[0].of_images.resolution
    return half(np.random.default_rng(0).standard_normal((3, 3, size, size)).astype(np.float32))


def variants(manifest: BundleManifest) -> Iterator[tuple[str, str | None]]:
    for subnet in manifest.subnets:
        yield subnet.digest, None
        yield from ((subnet.digest, one.exit) for one in subnet.exits)


def test_what_serves_gives_the_expected_answers_of_the_calibration_sample(exported: Exported) -> None:
    bundle = OpenBundle.open(exported.folder)
    sample = bundle.calibration()
    assert sample is not None
    assert (exported.folder / "calibration.npz").stat().st_size <= MOST_BYTES
    with adaptive_runtime.load(exported.folder, key_file=exported.key) as model:
        assert model.pool.form == bundle.manifest.own_format
        found = adaptive_runtime.check(model)
        assert set(found) == {Variant(digest=digest, exit=exit) for digest, exit in variants(bundle.manifest)}
        assert max(found.values()) <= TOLERANCE
        digest, exit = next(iter(sample.answers))
        answers = {**sample.answers, (digest, exit): sample.answers[digest, exit] + 1}
        content = dataclasses.replace(sample, answers=answers).to_bytes()
        changed = FileFacts(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
        ignored = shutil.ignore_patterns("prepared")  # is being filled
        folder = Path(shutil.copytree(exported.folder, exported.folder.parent / "changed", ignore=ignored))
        (folder / "calibration.npz").write_bytes(content)
        files = {**bundle.manifest.files, "calibration.npz": changed}
        (folder / "bundle.json").write_text(bundle.manifest.model_copy(update={"files": files}).to_json())
    with (
        adaptive_runtime.load(folder) as model,
        pytest.raises(AdaptiveError, match=rf"SubNet {digest}: answers differ from the expected ones by .*; allowed: "),
    ):
        adaptive_runtime.check(model)


def test_subnets_of_other_sizes_take_the_same_images(exported: Exported) -> None:
    manifest = exported.manifest
    assert len({one.input_shape for one in manifest.subnets}) == 2
    x = samples(manifest)
    with adaptive_runtime.load(exported.folder) as model:
        for subnet in manifest.subnets:
            model.use(subnet.digest)
            found = model.infer(x)
            assert found.subnet == subnet.digest
            assert found.logits.shape == (3, 10)
            height, width = subnet.input_shape[-2:]
            scaled = nn.functional.interpolate(torch.from_numpy(x), (height, width), mode="bilinear", antialias=True)
            serving = model.pool.answerer(model.state.serving)
            expected = serving.chain.infer(scaled.numpy()).logits
            assert np.abs(found.logits - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_samples_leave_early_where_thresholds_say(exported: Exported) -> None:
    largest = exported.manifest.subnets[0]
    with adaptive_runtime.load(exported.folder) as model:
        model.use(largest.digest, early=True)
        x = samples(exported.manifest)
        found = model.infer(x)
        model.use(largest.digest, largest.exits[0].exit)
        first = model.infer(x)
        model.use(largest.digest, largest.exits[1].exit)
        last = model.infer(x)
    sure = first.confidence >= 0.3
    assert found.exits == tuple(largest.exits[0 if leaves else 1].exit for leaves in sure)
    assert found.classes.tolist() == np.where(sure, first.classes, last.classes).tolist()


def test_the_signature_is_of_the_key_of_the_export(exported: Exported, tmp_path: Path) -> None:
    other = tmp_path / "key"
    other.write_text("fedcba9876543210")
    with pytest.raises(AdaptiveError, match="is not the signature of the manifest by this key"):
        adaptive_runtime.load(exported.folder, key_file=other)


def test_subnets_can_adapt_in_onnxruntime(exported: Exported) -> None:
    manifest = exported.manifest
    for subnet in manifest.subnets:
        net = subnet.nets["onnx"].adaptable
        assert net is not None
        assert net.images == 16
        assert {net.file, net.source, manifest.source_images} <= manifest.files.keys()
    own = sum(manifest.files[name].bytes for name in ("weights.safetensors", manifest.subnets[0].nets["onnx"].files[0]))
    assert manifest.files[f"{manifest.subnets[0].digest}.statistics.onnx"].bytes < own / 2
    x_NCHW = samples(manifest)
    with adaptive_runtime.load(exported.folder, format="onnx", prepares=False, weights="statistics") as model:
        assert model.infer(x_NCHW).logits.shape == (3, 10)
        assert model.weights is not None
        model.weights.wait()
        assert model.state.weights is not None
        (known,) = model.state.weights.subnets.values()
        assert not known.adapted
        images = model.pool.bundle.source_images()
        assert images is not None
        assert images.images.shape == (64, 3, 16, 16)
        answers = model.infer(images.normalised(manifest.subnets[0].of_images)).classes
        assert answers.shape == images.labels.shape
    if manifest.own_format == "ncnn":
        with pytest.raises(AdaptiveError, match="adapts in onnxruntime alone, not in ncnn; load it as 'onnx'"):
            adaptive_runtime.load(exported.folder, weights="statistics")


def test_a_network_without_batch_norm_has_nothing_to_adapt() -> None:
    net = tailor_ir.compile(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), torch.zeros(1, 3, 8, 8))
    with pytest.raises(UserError, match="the network has no BatchNorm: there is nothing to adapt by statistics"):
        require_adaptable(export.Settings(bundle=True, adaptable=True), net)
    with pytest.raises(ValueError, match="adaptable=true with bundle=false: SubNets of a bundle adapt"):
        export.Settings(adaptable=True)
