"""What predictors say of random SubNets is what they said."""

from pathlib import Path
from typing import Any

import pytest

from tailor_ir.memory import ONNXRUNTIME, Rules
from tasks.prediction.resources import EnergyPredictor, EnergySettings, MemoryPredictor
from tasks.prediction.sums import Sums, mac_sums, parameter_sums
from tests.support.golden import predictions
from tests.support.golden.fixtures import Golden
from tests.support.golden.networks import cases, network
from tests.support.golden.records import CODES, canonical_codes, digest, rounded

NETWORKS = ("smallest", "attention", "nested", "mobilenetv2", "levit", "densenet121", "hrnet_w18_small")
RTOL = 1e-9
"""Sums of thousands of float64 numbers, in any order."""
RULES = {
    "onnxruntime": ONNXRUNTIME,
    "blocks of 8": Rules(channel_block=8),
    "no blocks, nothing reused": Rules(channel_block=1, same_shape=False),
}
FEW = 10


@pytest.mark.long_cases("mobilenetv2")
@pytest.mark.parametrize("name", cases(NETWORKS))
def test_predictions_for_random_subnets_are_what_they_were(name: str, golden: Golden, tmp_path: Path) -> None:
    net = network(name)
    codes = canonical_codes(net, CODES)
    half = codes[: CODES // 2]
    accuracy = predictions.accuracy_predictor(net)
    settings = EnergySettings()
    plain = Sums.compile(net, {feature: predictions.latency_ms(feature) for feature in net.unique_operators()})
    found: dict[str, Any] = {
        "sum_ms": rounded(plain.predict(half[:FEW])),
        "latency_ms": rounded(predictions.latency_predictor(net, tmp_path).predict(codes)),
        "accuracy": rounded(accuracy.predict(half)),
        "score": rounded(accuracy.score(half[:FEW])),
        "loss": rounded(accuracy.predict_loss(half[:FEW])),
        "standard_error": rounded(accuracy.standard_error(half[:FEW])),
        "energy_mj": rounded(EnergyPredictor.compile(net, settings).predict(half)),
        "metered_energy_mj": rounded(
            EnergyPredictor.compile(net, settings, predictions.energy_mj(net)).predict(half[:FEW])
        ),
        "macs": [int(value) for value in mac_sums(net).predict(half)],
        "parameters_sha256": digest([int(value) for value in parameter_sums(net).predict(codes)]),
    }
    golden(f"predictions_{name}", found, rtol=RTOL)


@pytest.mark.long_cases("test_vit_relpos")
@pytest.mark.parametrize("name", cases(NETWORKS))
def test_memory_of_random_subnets_is_what_it_was(name: str, golden: Golden) -> None:
    net = network(name)
    codes = canonical_codes(net, CODES // 2)
    configs = [net.space.decode(code) for code in codes[:FEW]]
    found = {
        runtime: {
            "peak_bytes": MemoryPredictor.compile(net, rules).peak_bytes(codes).tolist(),
            "arena_bytes": [net.peak_arena_bytes(config, rules) for config in configs],
        }
        for runtime, rules in RULES.items()
    }
    golden(f"memory_{name}", found, rtol=0.0)
