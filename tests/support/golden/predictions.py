"""Predictors from numbers that depend on each operator alone: what they predict depends on nothing but the code."""

from pathlib import Path

import numpy as np

from tailor_ir import OperatorFeature, SuperNet
from tasks.evaluation.subnets import Accuracy
from tasks.measuring.lut import DeviceKey, Entry, Lut
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor

IMAGES = 10_000
DEVICE = DeviceKey(backend="onnxruntime", build="golden", precision="fp32", threads=1, fingerprint="golden")
MEASURED_AT = "2026-01-01T00:00:00+00:00"
CORRECTION = Correction(offset_ms=0.01, overhead_ms=0.001, factor=0.95, factors={"Conv": 0.9, "Conv grouped": 1.2})


def latency_ms(feature: OperatorFeature, seed: int = 0) -> float:
    """Around its MACs: a factor of e to the power of a normal number, and an overhead."""
    rng = np.random.default_rng([int(feature.digest, 16), seed])
    return 0.002 + feature.macs * 1e-7 * float(np.exp(rng.normal(0, 0.4)))


def lut(net: SuperNet, folder: Path) -> Lut:
    """The table of a device, all operators in it."""
    table = Lut(folder, DEVICE)
    table.append(_entry(feature) for feature in net.unique_operators())
    return Lut.open(folder)


def _entry(feature: OperatorFeature) -> Entry:
    p50_ms = latency_ms(feature)
    return Entry(
        digest=feature.digest,
        operator=feature.operator,
        feature="{}",
        state="ok",
        n=20,
        noisy=False,
        measured_at=MEASURED_AT,
        p50_ms=p50_ms,
        p90_ms=1.1 * p50_ms,
        spread=0.1,
    )


def latency_predictor(net: SuperNet, folder: Path) -> LatencyPredictor:
    """Of that device, corrected."""
    return LatencyPredictor.compile(net, lut(net, folder), CORRECTION)


def accuracy_predictor(net: SuperNet) -> AccuracyPredictor:
    """Accuracies that fall with the MACs that a modification saves, by random factors."""
    rng = np.random.default_rng(0)
    largest = net.macs(net.max_config)
    measured = []
    for config in modifications(net.space):
        lost = 0.25 * (1 - net.macs(config) / largest) * float(rng.uniform(0.2, 1.8))
        measured.append(Accuracy(round(IMAGES * (0.8 - lost)), IMAGES, 0.9 + 4 * lost + float(rng.normal(0, 0.01))))
    return AccuracyPredictor(sensitivities(net.space, measured))


def energy_mj(net: SuperNet) -> dict[str, float | None]:
    """Of every third operator, as a power sensor would tell it."""
    features = sorted(net.unique_operators(), key=lambda feature: feature.digest)
    return {feature.digest: 3 * latency_ms(feature, seed=1) for feature in features[::3]}
