"""What is usual for a network: the distance of features together, its rate of false alarms, and files of earlier versions."""

import io

import numpy as np
import pytest

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import AdaptableNet, AdaptableNorm, AdaptationSource
from adaptive_runtime.weights import DriftDetector, UsualFeatures
from adaptive_runtime.weights.adaptation import image_alignment, usual_features
from adaptive_runtime.weights.statistics import RIDGE, STATISTICS


def correlated(count: int, features: int, rng: np.random.Generator, noise: float = 0.3) -> np.ndarray:
    """Heavy-tailed features (N, F), which a few causes move together."""
    causes = rng.standard_t(3, (count, 4)) @ np.random.default_rng(features).standard_normal((4, features))
    return (causes + noise * rng.standard_normal((count, features))).astype(np.float32)


def test_the_distance_is_that_of_mahalanobis_with_a_ridge() -> None:
    rng = np.random.default_rng(0)
    layers = [correlated(64, 5, rng), correlated(64, 3, rng)]
    found = UsualFeatures.of(layers).scores(layers, rng.standard_normal((64, 5), np.float32))
    z_NF = np.concatenate(layers, 1).astype(np.float64)
    z_NF = (z_NF - z_NF.mean(0)) / z_NF.std(0, ddof=1)
    inverse = np.linalg.inv(np.cov(z_NF.T) + RIDGE * np.eye(8))
    expected = RIDGE * np.einsum("nf,fg,ng->n", z_NF, inverse, z_NF) / 8
    assert found.shape == (64, len(STATISTICS))
    assert found[:, STATISTICS.index("distance")] == pytest.approx(expected, rel=1e-4)


def test_the_distance_sees_usual_features_in_an_unusual_combination() -> None:
    rng = np.random.default_rng(1)
    usual = UsualFeatures.of([correlated(100, 200, rng)])
    logits = rng.standard_normal((50, 5)).astype(np.float32)
    images = correlated(50, 200, rng)
    alone = np.stack([rng.permutation(feature) for feature in images.T], 1)  # each feature as it was
    before, after = (usual.scores([layer], logits).T for layer in (images, alone))
    assert np.median(after[0]) < 2 * np.median(before[0])
    assert after[3].min() > before[3].max()


@pytest.mark.parametrize("of_covariance", [False, True])
def test_clean_images_alarm_no_more_often_than_stated(of_covariance: bool) -> None:
    """Unless images of the covariance calibrate: others are farther from it."""
    rng = np.random.default_rng(2)
    alarms, runs, images = 0, 80, 30
    for run in range(runs):
        layers = [correlated(80 + images, features, rng, noise=2.0) for features in (16, 80)]
        usual = UsualFeatures.of([layer[:40] for layer in layers])
        scores = usual.scores(layers, rng.standard_normal((80 + images, 5), np.float32))
        detector = DriftDetector(scores[:40] if of_covariance else scores[40:80], false_alarms=1000.0, seed=run)
        alarms += any(detector.update(score) for score in scores[80:])
    bound = images / 100
    assert (alarms / runs <= bound) is not of_covariance
    assert alarms / runs > bound / 30  # and the bound is not empty


def without(content: bytes, *names: str) -> bytes:
    """The npz file with fewer arrays."""
    with np.load(io.BytesIO(content)) as arrays:
        kept = {name: arrays[name] for name in arrays if name not in names}
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **kept)
    return stream.getvalue()


def test_what_an_earlier_version_has_written_tells_three_statistics() -> None:
    rng = np.random.default_rng(3)
    layers, logits = [correlated(64, 10, rng)], rng.standard_normal((64, 5), np.float32)
    usual = UsualFeatures.of(layers)
    scores = usual.scores(layers, logits)
    told = AdaptationSource(
        mean=np.zeros(5, np.float32),
        variance=np.ones(5, np.float32),
        usual_mean=usual.means[0],
        usual_deviation=usual.deviations[0],
        calibration=scores[:, :3],
        directions=usual.directions_PF,
        distances=scores[:, 3],
        usual_light=np.ones((6, 3), np.float32),
        light_deviations=np.array(1.0),
    )
    norms = (AdaptableNorm(mean="mean", variance="variance", channels=5),)
    net = AdaptableNet(file="net.onnx", images=2, norms=norms, source="net.npz")
    content = told.to_bytes()
    whole = AdaptationSource.from_bytes(content, "net.npz")
    light = ("usual_light", "light_deviations")
    earlier = AdaptationSource.from_bytes(without(content, "directions", "distances", *light), "net.npz")
    assert image_alignment(earlier) is None
    found = image_alignment(whole)
    assert found is not None
    assert (found.usual_UC.tolist(), found.deviations) == ([[1.0] * 3] * 6, 1.0)
    for source, count in ((whole, 4), (earlier, 3)):
        assert np.array_equal(source.calibration_ND, scores[:, :count])
        assert np.array_equal(usual_features(source, net).scores(layers, logits), scores[:, :count])
    for one, pair in (("directions", "directions or distances"), (light[1], "usual_light or light_deviations")):
        with pytest.raises(AdaptiveError, match=rf"net\.npz: has {pair} alone; export the bundle again"):
            AdaptationSource.from_bytes(without(content, one), "net.npz")
    with pytest.raises(AdaptiveError, match=r"net\.npz: cannot be read .*export the bundle again"):
        AdaptationSource.from_bytes(without(content, "calibration"), "net.npz")
