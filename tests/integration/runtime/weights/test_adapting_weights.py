"""A deployed model whose weights follow drifted images: beside serving, judged, undone, and remembered."""

import gc
import logging
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import adaptive_runtime
from adaptive_runtime import AdaptingOptions
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.server.metrics import state_report
from adaptive_runtime.server.recent import RecentService
from adaptive_runtime.server.served import LoadReport
from adaptive_runtime.weights import (
    AdaptedSubnet,
    GuardSettings,
    NormScales,
    NormStatistics,
    WeightMethod,
    WeightOptions,
)
from adaptive_runtime.weights.gradients import OPERATORS
from adaptive_runtime.weights.weights import AdaptedFiles, KeptWeights
from tests.support.runtime.device_files import write
from tests.support.runtime.drifting import drifted, error, followed, kinds, pictures, serving_adapted
from tests.support.runtime.service_process import INFER, body, refused, served, soon
from tests.support.threads import beside

MOST_IMAGES = 200
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def bundle(adaptable_bundle: Path) -> Path:
    return adaptable_bundle


def opened(bundle: Path, state: Path | None = None, method: WeightMethod = "statistics") -> DeployedModel:
    """A model that adapts alone: images stay as they come."""
    return followed(bundle, method=method, state=state, align=False)


@pytest.mark.parametrize("method", ["statistics", "tent"])
def test_drift_is_corrected_and_the_source_is_back_when_it_is_over(bundle: Path, method: WeightMethod) -> None:
    x_NCHW, y_N = pictures(320, 5)
    with opened(bundle, method=method) as model:
        x_1CHW = x_NCHW[:1]
        recent = RecentService(model.state)
        before = model.infer(x_1CHW).logits
        clean = error(model, x_NCHW, y_N)
        assert kinds(model) == []
        assert not serving_adapted(model)
        assert np.array_equal(model.infer(x_1CHW).logits, before)
        far = drifted(x_NCHW)
        error(model, far[:160], y_N[:160])
        assert kinds(model)[:2] == ["drift", "kept"]
        recent.observe(model.state)
        told = state_report(model.state, recent, LoadReport(), {})
        steps = [one["step"] for one in reversed(told["decisions"])]
        assert steps[:3] == ["start", "weights: drift", "weights: kept"]
        assert told["model"]["weights"]["subnets"][model.state.serving.digest]["adapted"]
        assert serving_adapted(model)
        assert not np.array_equal(model.infer(x_1CHW).logits, before)
        corrected = error(model, far[160:], y_N[160:])
        assert clean < 0.1
        assert corrected < clean + 0.1
        more, labels = pictures(MOST_IMAGES, 6)
        error(model, more, labels)
        assert kinds(model)[-1] in ("over", "undone")
        assert not serving_adapted(model)
        assert np.array_equal(model.infer(x_1CHW).logits, before)
    with adaptive_runtime.load(bundle, prepares=False) as plain:
        left_alone = np.mean(plain.infer(far).classes != y_N)
    assert left_alone > corrected + 0.2


def wrong(statistics: NormStatistics, how: str) -> NormStatistics:
    if how == "narrow":
        return NormStatistics(statistics.mean_F, statistics.variance_F * np.float32(0.05))
    if how == "wide":
        return NormStatistics(statistics.mean_F, statistics.variance_F * np.float32(30))
    order = np.random.default_rng(0).permutation(len(statistics.mean_F))
    return NormStatistics(statistics.mean_F[order], statistics.variance_F[order])


@pytest.mark.parametrize("how", ["narrow", "wide", "shuffled"])
@pytest.mark.parametrize("stream", ["clean", "drifted"])
def test_statistics_that_are_wrong_on_purpose_are_undone_soon(
    bundle: Path, tmp_path: Path, how: str, stream: str
) -> None:
    """The side file of an earlier process has them."""
    with adaptive_runtime.load(bundle, prepares=False) as plain:
        x_NCHW, _ = pictures(MOST_IMAGES, 7)
        x_NCHW = drifted(x_NCHW) if stream == "drifted" else x_NCHW
        expected = plain.infer(x_NCHW[:1]).logits
        digest, pool = plain.state.serving.digest, plain.pool
        net = pool.bundle.manifest.by_digest[digest].nets["onnx"].adaptable
        assert net is not None
        source = AdaptedSubnet(pool, digest, WeightOptions(), None).weights.source
        belongs = pool.bundle.manifest.files[net.source].sha256
    AdaptedFiles(tmp_path / "state").write(digest, belongs, KeptWeights(wrong(source, how), 3))
    with opened(bundle, tmp_path / "state") as model:
        assert model.weights is not None
        model.weights.wait()
        assert serving_adapted(model)
        assert not np.allclose(model.infer(x_NCHW[:1]).logits, expected, rtol=1e-3)
        error(model, x_NCHW[1:], np.zeros(MOST_IMAGES - 1, np.int64))
        assert model.state.weights is not None
        undone = [one for one in model.state.weights.events if one.kind in ("undone", "over")]
        if not undone:  # steps to drifted images have corrected it
            assert stream == "drifted"
            x_NCHW, y_N = pictures(MOST_IMAGES, 9)
            with adaptive_runtime.load(bundle, prepares=False) as plain:
                left_alone = np.mean(plain.infer(drifted(x_NCHW)).classes != y_N)
            assert error(model, drifted(x_NCHW), y_N) < left_alone
            return
        assert undone[0].image <= MOST_IMAGES
        if stream == "clean":
            assert np.array_equal(model.infer(x_NCHW[:1]).logits, expected)
            assert not (tmp_path / "state" / f"{digest}.adapted.npz").exists()
            assert kinds(model) == ["undone"]  # nothing adapts to images that nobody has seen drift


def test_scales_that_are_wrong_on_purpose_are_undone_soon(bundle: Path, tmp_path: Path) -> None:
    """The side file of an earlier process has them, and images are those of the source."""
    with adaptive_runtime.load(bundle, prepares=False) as plain:
        x_NCHW, y_N = pictures(MOST_IMAGES, 12)
        expected = plain.infer(x_NCHW[:1]).logits
        digest, pool = plain.state.serving.digest, plain.pool
        weights = AdaptedSubnet(pool, digest, WeightOptions(method="tent"), None).weights
        net = pool.bundle.manifest.by_digest[digest].nets["onnx"].adaptable
        assert net is not None
        assert weights.scales is not None
        belongs = pool.bundle.manifest.files[net.source].sha256
        factors = np.random.default_rng(0).choice(np.array([0.3, 3], np.float32), len(weights.scales.scale_F))
        scales = NormScales(weights.scales.scale_F * factors, weights.scales.bias_F[::-1].copy())
    AdaptedFiles(tmp_path / "state").write(digest, belongs, KeptWeights(weights.source, 3, scales))
    with opened(bundle, tmp_path / "state", "tent") as model:
        assert model.weights is not None
        model.weights.wait()
        assert serving_adapted(model)
        assert not np.allclose(model.infer(x_NCHW[:1]).logits, expected, rtol=1e-3)
        error(model, x_NCHW[1:], y_N[1:])
        assert kinds(model) == ["undone"]
        assert np.array_equal(model.infer(x_NCHW[:1]).logits, expected)


def adapted_state(bundle: Path, tmp_path: Path, method: WeightMethod) -> tuple[Path, np.ndarray, np.ndarray]:
    """The side file of a model that adapted, an image, and its adapted logits."""
    x_NCHW, y_N = pictures(192, 8)
    with opened(bundle, tmp_path / "state", method) as model:
        error(model, drifted(x_NCHW), y_N)
        assert serving_adapted(model)
        digest = model.state.serving.digest
        logits = model.infer(x_NCHW[:1]).logits
    return tmp_path / "state" / f"{digest}.adapted.npz", x_NCHW[:1], logits


@pytest.mark.parametrize("method", ["statistics", "tent"])
def test_what_was_adapted_survives_a_restart_and_no_weights_are_written(
    bundle: Path, tmp_path: Path, method: WeightMethod
) -> None:
    before = {file.name: file.read_bytes() for file in bundle.iterdir() if file.is_file()}
    _, x_1CHW, logits = adapted_state(bundle, tmp_path, method)
    with opened(bundle, tmp_path / "state", method) as again:
        assert again.weights is not None
        again.weights.wait()
        assert serving_adapted(again)
        assert np.array_equal(again.infer(x_1CHW).logits, logits)
    assert {file.name: file.read_bytes() for file in bundle.iterdir() if file.is_file()} == before


@pytest.mark.parametrize(("written", "read"), [("statistics", "tent"), ("tent", "statistics")])
def test_another_method_goes_on_with_the_statistics_of_a_side_file(
    bundle: Path, tmp_path: Path, written: WeightMethod, read: WeightMethod
) -> None:
    file, x_1CHW, logits = adapted_state(bundle, tmp_path, written)
    with np.load(file) as arrays:
        kept = NormStatistics(arrays["mean"], arrays["variance"])
        assert ("scale" in arrays) is (written == "tent")
    with opened(bundle, tmp_path / "state", read) as again:
        assert again.weights is not None
        again.weights.wait()
        assert serving_adapted(again)
        found = again.infer(x_1CHW).logits
        subnet = AdaptedSubnet(again.pool, again.state.serving.digest, WeightOptions(), None)
        expected = subnet.weights.network.look(x_1CHW, kept).logits_BK
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-3)
    assert np.array_equal(found, logits) is (written == "statistics")


def test_scales_that_were_learned_are_kept_with_a_checksum(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = AdaptedFiles(tmp_path / "state")
    one, two, three = (np.full(5, value, np.float32) for value in (1, 2, 3))
    files.write("subnet", "a bundle", KeptWeights(NormStatistics(one, two), 2, NormScales(two, three)))
    found = files.read("subnet", "a bundle", 5)
    assert found is not None
    assert found.scales is not None
    assert [each[0] for each in (*found.statistics, *found.scales)] == [1, 2, 2, 3]
    file = files.file("subnet")
    with np.load(file) as arrays:
        np.savez(file, **{**arrays, "bias": arrays["bias"] + 1})
    with caplog.at_level(logging.WARNING, "adaptive_runtime"):
        assert files.read("subnet", "a bundle", 5) is None
    assert [record.getMessage() for record in caplog.records] == [
        f"'{file}' is damaged (another checksum); the SubNet is as the bundle has it"
    ]


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_a_damaged_side_file_is_one_line_and_the_source_serves(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    files, statistics = AdaptedFiles(tmp_path / "state"), NormStatistics(np.ones(5, np.float32), np.ones(5, np.float32))
    files.write("subnet", "a bundle", KeptWeights(statistics, 2))
    found = files.read("subnet", "a bundle", 5)
    assert found is not None
    assert (found[1], found[0].mean_F.tolist()) == (2, [1.0] * 5)
    file = files.file("subnet")
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "changed":
        with np.load(file) as arrays:
            np.savez(file, **{**arrays, "mean": arrays["mean"] + 1})
    wanted = "another bundle" if damage == "foreign" else "a bundle"
    with caplog.at_level(logging.WARNING, "adaptive_runtime"):
        assert files.read("subnet", wanted, 5) is None
    (record,) = caplog.records
    assert record.getMessage().startswith(f"'{file}' ")
    assert "\n" not in record.getMessage()
    assert ("belongs to another" if damage == "foreign" else "is damaged") in record.getMessage()


def test_requests_see_the_old_weights_or_the_new_ones(bundle: Path) -> None:
    """Answers of threads that ask while weights change are one of two, bit by bit."""
    x_NCHW, _ = pictures(1, 9)
    with adaptive_runtime.load(bundle, prepares=False) as model:
        digest = model.state.serving.digest
        subnet = AdaptedSubnet(model.pool, digest, WeightOptions(), None)
        source = model.infer(x_NCHW).logits
        subnet.weights.restore(wrong(subnet.weights.source, "wide"), 2)
        x_BCHW, _ = subnet.weights.example
        subnet.weights.example = x_BCHW, subnet.weights.look(x_BCHW).logits_BK
        subnet.serve_adapted()
        adapted = model.infer(x_NCHW).logits
        found: list[np.ndarray] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                found.append(model.infer(x_NCHW).logits)

        with beside(ask, ask, over=over):
            for _ in range(5):
                subnet.serve_source()
                subnet.serve_adapted()
    assert not np.array_equal(source, adapted)
    seen = {one.tobytes() for one in found}
    assert seen <= {source.tobytes(), adapted.tobytes()}
    assert adapted.tobytes() in seen


def test_a_bundle_without_what_adapting_needs_is_one_clear_line(plain_bundle: Path) -> None:
    with pytest.raises(AdaptiveError, match=r"has nothing to adapt by statistics; export SubNets with BatchNorm"):
        adaptive_runtime.load(plain_bundle, prepares=False, weights="statistics")
    with pytest.raises(AdaptiveError, match="weights: 'gradients'; allowed: 'statistics'"):
        adaptive_runtime.load(plain_bundle, prepares=False, weights="gradients")  # type: ignore[arg-type]


def test_gradients_without_torch_are_one_line_with_its_installation(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    line = refused("serve", str(bundle), "--weights", "tent")
    wanted = (
        "weights 'tent': gradients need torch and onnx (No module named 'torch'); "
        "pip install 'autotailor_runtime-VERSION-py3-none-any.whl[adapt]'"
    )
    assert wanted in line


def test_a_subnet_that_cannot_be_differentiated_serves_as_it_is(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OPERATORS, "Relu")
    x_NCHW, y_N = pictures(64, 11)
    with opened(bundle, method="tent") as model:
        error(model, drifted(x_NCHW), y_N)
        assert model.state.weights is not None
        (event,) = model.state.weights.events
    assert event.kind == "failed"
    assert "operator 'Relu' at '" in event.reason
    assert "has no gradients here; adapt by 'statistics'" in event.reason


def test_statistics_adapt_without_torch(bundle: Path) -> None:
    program = (
        "import sys, numpy, adaptive_runtime\n"
        "with adaptive_runtime.load(sys.argv[1], prepares=False, weights='statistics') as model:\n"
        "    model.infer(numpy.zeros((16, 3, 16, 16), numpy.float32))\n"
        "    model.weights.wait()\n"
        "    assert [one.images for one in model.state.weights.subnets.values()] == [16]\n"
        "assert not {'torch', 'onnx'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, bundle], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(("method", "further"), [("statistics", ()), ("tent", ("--unaligned",))])
def test_a_service_adapts_tells_it_and_goes_on_after_a_restart(
    bundle: Path, plain_bundle: Path, tmp_path: Path, method: WeightMethod, further: tuple[str, ...]
) -> None:
    options = ("--weights", method, *further, "--state", str(tmp_path / "state"), "--cache", str(tmp_path / "cache"))
    x_NCHW, _ = pictures(192, 10)
    with served(bundle, tmp_path / "log", *options) as service:

        def known() -> dict[str, Any]:
            (found,) = service.state()["model"]["weights"]["subnets"].values()
            assert isinstance(found, dict)
            return found

        def has_looked_at(images: int) -> bool:
            return bool(known()["images"] == images)

        assert soon(lambda: bool(service.state()["model"]["weights"]["subnets"]), WITHIN_S)
        for start in range(0, len(x_NCHW), 16):
            assert service.http.post(INFER, **body(drifted(x_NCHW[start : start + 16]))).status_code == 200
            assert soon(partial(has_looked_at, start + 16), WITHIN_S)
        assert known()["adapted"]
        assert soon(lambda: "weights: kept" in [one["step"] for one in service.state()["decisions"]], WITHIN_S)
        assert known()["aligned"] is not bool(further)
        assert ("weights: aligned" in [one["step"] for one in service.state()["decisions"]]) is not bool(further)
        assert "autotailor_adapted_weights{" in service.http.get("/metrics").text
        assert "autotailor_aligned_images{" in service.http.get("/metrics").text
        assert any(": kept: " in line for line in service.lines())
        service.process.kill()
        service.process.wait()
    with served(bundle, tmp_path / "log", *options) as again:

        def is_adapted() -> bool:
            return [one["adapted"] for one in again.state()["model"]["weights"]["subnets"].values()] == [True]

        assert soon(is_adapted, WITHIN_S)
    assert "has nothing to adapt by statistics" in refused("serve", str(plain_bundle), "--weights", method)
    assert "--unaligned: no weights adapt; give --weights, or leave it out" in refused(
        "serve", str(bundle), "--unaligned"
    )


def test_a_rule_turns_weights_off_and_on_again(bundle: Path, tmp_path: Path) -> None:
    """While the battery is low the bundle's weights serve, and nothing looks at images."""
    root = write(tmp_path / "device", {"proc/meminfo": "MemTotal: 4096 kB\nMemAvailable: 2048 kB", **battery(80)})
    weights = WeightOptions(waiting_images=10_000, guard=GuardSettings(judged_from=8))
    adapts = AdaptingOptions(sensors_root=root, every_s=0.05, rules="battery < 20% -> accuracy first, weights off")
    x_NCHW, _ = pictures(160, 5)
    far = drifted(x_NCHW)
    with adaptive_runtime.load(bundle, 60_000.0, prepares=False, weights=weights, adapts=adapts) as model:
        before = model.infer(x_NCHW[:1]).logits
        assert model.weights is not None

        def shown() -> bool:
            for start in range(0, len(far), 16):
                model.infer(far[start : start + 16])
            assert model.weights is not None
            model.weights.wait()
            return "kept" in kinds(model)

        assert soon(shown, WITHIN_S)
        write(root, battery(10))

        def is_off() -> bool:
            model.infer(x_NCHW[:1])
            assert model.weights is not None
            model.weights.wait()
            return kinds(model)[-1] == "off"

        assert soon(is_off, WITHIN_S)
        assert model.state.weights is not None
        assert model.state.weights.subnets == {}
        assert np.array_equal(model.infer(x_NCHW[:1]).logits, before)
        count = len(kinds(model))
        for start in range(0, len(far), 16):
            model.infer(far[start : start + 16])
        model.weights.wait()
        assert len(kinds(model)) == count
        write(root, battery(80))
        assert soon(lambda: shown() and kinds(model)[-1] != "off", WITHIN_S)


def sessions() -> int:
    """How many sessions of onnxruntime are in memory."""
    return sum(isinstance(one, onnxruntime.InferenceSession) for one in gc.get_objects())


def test_weights_that_may_not_adapt_free_what_looks_at_images_at_once(bundle: Path) -> None:
    x_NCHW, y_N = pictures(160, 5)
    with followed(bundle) as model:
        error(model, drifted(x_NCHW), y_N)
        assert serving_adapted(model)
        assert model.weights is not None
        gc.collect()
        gc.disable()
        try:
            before = sessions()
            model.weights.let(adapt=False)
            model.weights.wait()
            assert sessions() == before - 1
        finally:
            gc.enable()


def test_weights_that_may_not_adapt_forget_what_an_earlier_process_has_kept_of_any_subnet(
    bundle: Path, tmp_path: Path
) -> None:
    with followed(bundle, state=tmp_path) as model:
        assert model.weights is not None
        model.weights.wait()
        serving = model.state.serving.digest
        others = [one.digest for one in model.subnets if one.digest != serving]
        assert others
        for digest in others:
            AdaptedFiles(tmp_path).file(digest).write_bytes(b"of an earlier process")
        model.weights.let(adapt=False)
        model.weights.wait()
        assert list(tmp_path.glob("*.npz")) == []
        assert set(kinds(model)) <= {"off"}


def battery(percent: int) -> dict[str, str]:
    """The files of a battery that is not charged."""
    place = "sys/class/power_supply/BAT0"
    return {f"{place}/type": "Battery", f"{place}/status": "Discharging", f"{place}/capacity": str(percent)}
