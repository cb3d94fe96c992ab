"""A deployed model whose images are aligned while they drift: at the alarm, for source and adapted weights, and remembered."""

import hashlib
import io
import json
import logging
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import adaptive_runtime
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, AdaptationSource
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.weights import AdaptedSubnet, GuardSettings, NormStatistics, WeightOptions
from adaptive_runtime.weights.adaptation import image_alignment
from adaptive_runtime.weights.aligning import AlignedView, AlignmentDecision
from adaptive_runtime.weights.weights import AdaptedFiles, KeptWeights
from tests.support.runtime.bundled import OBSERVED_IMAGES
from tests.support.runtime.drifting import error, followed, kinds, pictures, serving_adapted
from tests.support.threads import beside

MOST_IMAGES = 200
NEVER_JUDGED = GuardSettings(judged_from=32)


def brighter(x_NCHW: np.ndarray) -> np.ndarray:
    return x_NCHW + np.float32(0.2)


def inverted(x_NCHW: np.ndarray) -> np.ndarray:
    """Bright is dark; mean, contrast and details of each channel stay."""
    return 2 * x_NCHW.mean((2, 3), keepdims=True) - x_NCHW


def aligned(model: DeployedModel) -> bool:
    assert model.state.weights is not None
    return model.state.weights.subnets[model.state.serving.digest].aligned


def left_alone(bundle: Path, x_NCHW: np.ndarray, y_N: np.ndarray) -> float:
    """The error of the bundle as it is."""
    with adaptive_runtime.load(bundle, prepares=False) as plain:
        return float(np.mean(plain.infer(x_NCHW).classes != y_N))


def test_light_is_undone_at_the_alarm_and_comes_through_again_when_drift_is_over(adaptable_bundle: Path) -> None:
    x_NCHW, y_N = pictures(320, 5)
    far_NCHW = brighter(x_NCHW)
    with followed(adaptable_bundle, guard=NEVER_JUDGED) as model:
        before = model.infer(x_NCHW[:1]).logits
        error(model, x_NCHW, y_N)
        assert kinds(model) == []
        assert np.array_equal(model.infer(x_NCHW[:1]).logits, before)
        error(model, far_NCHW[:OBSERVED_IMAGES], y_N[:OBSERVED_IMAGES])
        assert kinds(model) == ["drift", "aligned"]
        assert aligned(model)
        assert not serving_adapted(model)
        wrong = error(model, far_NCHW[OBSERVED_IMAGES:80], y_N[OBSERVED_IMAGES:80])
        assert wrong < 0.6 * left_alone(adaptable_bundle, far_NCHW[OBSERVED_IMAGES:80], y_N[OBSERVED_IMAGES:80])
        assert kinds(model) == ["drift", "aligned"]  # without a step that was judged
        error(model, *pictures(MOST_IMAGES, 6))
        assert kinds(model)[-1] == "over"
        assert not aligned(model)
        assert np.array_equal(model.infer(x_NCHW[:1]).logits, before)


def test_statistics_adapt_to_aligned_images(adaptable_bundle: Path) -> None:
    x_NCHW, y_N = pictures(320, 5)
    found = {}
    for align in (True, False):
        with followed(adaptable_bundle, align=align) as model:
            found[align] = error(model, brighter(x_NCHW), y_N)
            assert kinds(model)[: 2 + align] == ["drift", *(["aligned"] if align else []), "kept"]
            assert serving_adapted(model)
            assert aligned(model) is align
    assert found[True] < left_alone(adaptable_bundle, brighter(x_NCHW), y_N) / 2
    assert found[True] < found[False]


def test_images_that_alignment_does_not_make_more_usual_stay_as_they_come(adaptable_bundle: Path) -> None:
    x_NCHW, y_N = pictures(64, 5)
    with followed(adaptable_bundle, guard=NEVER_JUDGED) as model:
        expected = model.infer(inverted(x_NCHW)).logits
        error(model, inverted(x_NCHW), y_N)
        assert kinds(model) == ["drift"]
        assert not aligned(model)
        assert np.array_equal(model.infer(inverted(x_NCHW)).logits, expected)


@pytest.mark.parametrize(
    ("lost_points", "unusual"),
    [
        (3.0, [9.5, 9.5, 8.6, 8.4, 60.0]),  # 9.5 and 9.05 are more than nine tenths of 10, and 34.2 is more than 10
        (3.1, [9.5, 4.0, 1.2, 1.2, 7.0]),  # 6.75 and 2.6 are more than a quarter of 10, and 4.1 is more than 2.8
    ],
)
def test_alignment_is_taken_when_it_makes_features_more_usual_and_left_when_it_does_not(
    lost_points: float, unusual: list[float]
) -> None:
    """Of the images before the alarm, then of each batch."""
    given = iter(unusual)

    def look(x_BCHW: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.ones((len(x_BCHW), 2), np.float32), np.full((len(x_BCHW), 4), next(given))

    view = AlignedView(look, lambda: lost_points)
    decision = AlignmentDecision(view, GuardSettings(judged_from=4, held_back_images=8))
    x_BCHW, scores = np.zeros((4, 3, 2, 2), np.float32), np.full((4, 4), 10.0)
    told = []
    for _ in range(4):
        decision.remember(x_BCHW, scores)
        told.append((*decision.decide(x_BCHW, scores)[1:], decision.aligns))
    assert [aligns for _, aligns in told] == [False, False, True, False]
    assert [reason is None for reason, _ in told] == [True, True, False, False]
    means = [sum(unusual[end - 2 : end]) / 2 for end in (4, 5)]
    for (reason, _), mean in zip(told[2:], means, strict=True):
        assert reason == f"features are {mean:.1f} times as unusual as usual in aligned images, 10.0 as they come"


@pytest.mark.parametrize("guard", [GuardSettings(judged_from=8), NEVER_JUDGED], ids=["adapted", "aligned alone"])
def test_a_restart_goes_on_with_aligned_images(adaptable_bundle: Path, tmp_path: Path, guard: GuardSettings) -> None:
    x_NCHW, y_N = pictures(112, 8)
    with followed(adaptable_bundle, state=tmp_path / "state", guard=guard) as model:
        before = model.infer(x_NCHW[:1]).logits
        error(model, brighter(x_NCHW), y_N)
        assert serving_adapted(model) is (guard != NEVER_JUDGED)
        expected = model.infer(brighter(x_NCHW[:1])).logits
        digest = model.state.serving.digest
    with followed(adaptable_bundle, state=tmp_path / "state", guard=guard) as again:
        assert again.weights is not None
        again.weights.wait()
        assert aligned(again)
        assert serving_adapted(again) is (guard != NEVER_JUDGED)
        assert np.array_equal(again.infer(brighter(x_NCHW[:1])).logits, expected)
        error(again, *pictures(MOST_IMAGES + OBSERVED_IMAGES, 6))
        assert kinds(again)[-1] in ("over", "undone")
        assert not aligned(again)
        assert np.array_equal(again.infer(x_NCHW[:1]).logits, before)
    assert not AdaptedFiles(tmp_path / "state").file(digest).exists()


def test_images_that_nobody_has_seen_drift_are_not_aligned(adaptable_bundle: Path, tmp_path: Path) -> None:
    """The side file of an earlier process has statistics that are wrong on purpose."""
    with followed(adaptable_bundle) as plain:
        digest, pool = plain.state.serving.digest, plain.pool
        net = pool.bundle.manifest.by_digest[digest].nets["onnx"].adaptable
        assert net is not None
        source = AdaptedSubnet(pool, digest, WeightOptions(), None).weights.source
        belongs = pool.bundle.manifest.files[net.source].sha256
    narrow = NormStatistics(source.mean_F, source.variance_F * np.float32(0.05))
    AdaptedFiles(tmp_path / "state").write(digest, belongs, KeptWeights(narrow, 3))
    with followed(adaptable_bundle, state=tmp_path / "state") as model:
        error(model, *pictures(MOST_IMAGES, 7))
        assert kinds(model) == ["undone"]


def test_what_was_adapted_to_aligned_images_is_not_taken_without_aligning(
    adaptable_bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x_NCHW, y_N = pictures(112, 8)
    with followed(adaptable_bundle, state=tmp_path / "state") as model:
        before = model.infer(x_NCHW[:1]).logits
        error(model, brighter(x_NCHW), y_N)
        digest = model.state.serving.digest
    with (
        caplog.at_level(logging.WARNING, "adaptive_runtime"),
        followed(adaptable_bundle, state=tmp_path / "state", align=False) as again,
    ):
        assert again.weights is not None
        again.weights.wait()
        assert not serving_adapted(again)
        assert np.array_equal(again.infer(x_NCHW[:1]).logits, before)
    file = AdaptedFiles(tmp_path / "state").file(digest)
    assert f"'{file}' is of aligned images; the SubNet is as the bundle has it" in caplog.messages


def test_a_side_file_tells_whether_images_are_aligned_and_its_checksum_covers_that(tmp_path: Path) -> None:
    files, statistics = AdaptedFiles(tmp_path), NormStatistics(np.ones(5, np.float32), np.ones(5, np.float32))
    for aligns in (False, True):
        files.write("subnet", "a bundle", KeptWeights(statistics, 2, aligns=aligns))
        found = files.read("subnet", "a bundle", 5)
        assert found is not None
        assert found.aligns is aligns
    with np.load(files.file("subnet")) as arrays:
        kept = {name: arrays[name] for name in arrays if name != "aligns"}
    np.savez(files.file("subnet"), **kept)  # as a version reads it that aligns nothing
    assert files.read("subnet", "a bundle", 5) is None


def of_an_earlier_version(bundle: Path, folder: Path) -> Path:
    """The bundle without what is usual of images."""
    shutil.copytree(bundle, folder)
    manifest = json.loads((folder / BUNDLE_FILE).read_text())
    for name in manifest["files"]:
        if name.endswith(".source.npz"):
            with np.load(folder / name) as arrays:
                kept = {key: arrays[key] for key in arrays if "light" not in key}
            stream = io.BytesIO()
            np.savez(stream, allow_pickle=False, **kept)
            content = stream.getvalue()
            (folder / name).write_bytes(content)
            manifest["files"][name] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (folder / BUNDLE_FILE).write_text(json.dumps(manifest))
    return folder


def test_a_bundle_of_an_earlier_version_adapts_and_aligns_nothing(adaptable_bundle: Path, tmp_path: Path) -> None:
    x_NCHW, y_N = pictures(160, 5)
    with followed(of_an_earlier_version(adaptable_bundle, tmp_path / "bundle")) as model:
        error(model, brighter(x_NCHW), y_N)
        assert kinds(model)[:2] == ["drift", "kept"]
        assert serving_adapted(model)
        assert not aligned(model)


def test_requests_get_weights_and_alignment_together(adaptable_bundle: Path) -> None:
    """Answers of threads that ask while both change are those of the source, or of adapted weights with aligned images."""
    x_NCHW, _ = pictures(1, 9)
    far_NCHW = brighter(x_NCHW)
    with adaptive_runtime.load(adaptable_bundle, prepares=False) as model:
        subnet = AdaptedSubnet(model.pool, model.state.serving.digest, WeightOptions(), None)
        source = model.infer(far_NCHW).logits
        subnet.guard.resume(kept=True, aligns=True)
        for _ in range(2):
            subnet.weights.adapt(pictures(OBSERVED_IMAGES, 10)[0])
        x_BCHW, _ = subnet.weights.example
        subnet.weights.example = x_BCHW, subnet.weights.look(x_BCHW).logits_BK
        subnet.serve_adapted()
        both = model.infer(far_NCHW).logits
        plain = subnet.weights.network.look(far_NCHW, subnet.weights.statistics).logits_BK
        found: list[np.ndarray] = []
        over = threading.Event()

        def ask() -> None:
            while not over.is_set():
                found.append(model.infer(far_NCHW).logits)

        with beside(ask, ask, over=over):
            for _ in range(5):
                subnet.serve_source()
                subnet.serve_adapted()
        subnet.serve_source(aligns=True)
        light = model.infer(far_NCHW).logits
    alignment = subnet.weights.alignment
    assert alignment is not None
    assert np.abs(both - plain).max() > 0.1
    expected = subnet.weights.network.look(alignment(far_NCHW), subnet.weights.source).logits_BK
    assert light == pytest.approx(expected, rel=1e-3, abs=1e-3)
    seen = {one.tobytes() for one in found}
    assert seen <= {source.tobytes(), both.tobytes()}
    assert both.tobytes() in seen


def test_images_are_aligned_without_torch(adaptable_bundle: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", brighter(pictures(32, 5)[0]))
    program = (
        "import sys, numpy, adaptive_runtime\n"
        "with adaptive_runtime.load(sys.argv[1], prepares=False, weights='statistics') as model:\n"
        "    model.infer(numpy.load(sys.argv[2]))\n"
        "    model.weights.wait()\n"
        "    assert [one.aligned for one in model.state.weights.subnets.values()] == [True]\n"
        "assert not {'torch', 'onnx'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-c", program, str(adaptable_bundle), str(tmp_path / "images.npy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_usual_of_images_goes_through_a_file(adaptable_bundle: Path) -> None:
    (*_, file) = sorted(adaptable_bundle.glob("*.source.npz"))
    source = AdaptationSource.from_bytes(file.read_bytes(), file.name)
    alignment = image_alignment(source)
    assert alignment is not None
    assert alignment.deviations == 1.0
    x_NCHW, _ = pictures(64 + 256, 1)
    assert alignment.usual_UC[0] == pytest.approx(x_NCHW[64:].mean((0, 2, 3)), rel=1e-5)
