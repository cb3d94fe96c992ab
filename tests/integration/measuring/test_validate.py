"""The latency predictor's error on whole SubNets that were measured and not fitted is stated."""

import json
from pathlib import Path

import numpy as np
import pytest

import tailor_ir
from profiling_agents.client import AgentClient, MeasureSettings
from tasks.base.progress import Silent
from tasks.measuring import operators as enumeration
from tasks.measuring import profile
from tasks.measuring.subnets import validation_configs
from tasks.prediction import latency
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.settings import Settings

QUICK = MeasureSettings(time_cap_ms=10.0, warmup_ms=1.0, min_blocks=2, patience=0.0)


@pytest.fixture(scope="module")
def profiled(supernet: Path, device: AgentClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("profiled")
    enumeration.run(supernet, folder, Silent())
    profile.run(profile.Settings(method="alone", measure=QUICK), folder, device, folder, Silent())
    return folder


@pytest.mark.few("onnxruntime")
def test_largest_smallest_and_random_subnets_are_measured_and_errors_stated(
    supernet: Path, device: AgentClient, profiled: Path, tmp_path: Path
) -> None:
    settings = Settings(random_subnets=6, fit_subnets=2, rounds=1, measure=QUICK)
    result = latency.run(settings, supernet, profiled, device, tmp_path, Silent())
    rows = result["subnets"]
    assert [row["kind"] for row in rows] == ["largest", "smallest"] + ["random"] * 6
    assert [row["used_for"] for row in rows] == ["fit"] * 4 + ["held out"] * 4
    assert (result["fit"]["n"], result["held_out"]["n"]) == (4, 4)
    assert json.loads((tmp_path / latency.LATENCY_VALIDATION_FILE).read_text()) == result
    net = tailor_ir.load(supernet)
    predictor = LatencyPredictor.load(tmp_path / latency.LATENCY_FILE)
    predicted = predictor.predict(net.space.encode([row["config"] for row in rows]))
    np.testing.assert_allclose(predicted, [row["predicted_ms"] for row in rows], rtol=1e-12, atol=0)
    assert result["correction"] == predictor.correction.model_dump()
    assert rows[0]["measured_ms"] > rows[1]["measured_ms"] > 0
    relative = [abs(row["predicted_ms"] / row["measured_ms"] - 1) for row in rows[4:]]
    assert result["held_out"]["max_relative_error"] == pytest.approx(max(relative), rel=1e-9)


@pytest.mark.few("onnxruntime")
def test_measured_subnets_are_not_measured_again(
    supernet: Path, device: AgentClient, profiled: Path, tmp_path: Path
) -> None:
    settings = Settings(random_subnets=4, fit_subnets=1, rounds=1, measure=QUICK)
    first = latency.run(settings, supernet, profiled, device, tmp_path, Silent())
    again = latency.run(settings, supernet, profiled, device, tmp_path, Silent())
    assert again == first


def test_validation_subnets_are_different_and_end_where_the_space_ends(supernet: Path) -> None:
    net = tailor_ir.load(supernet)
    configs = validation_configs(net, 1000, seed=0)
    assert len({net.space.digest(config) for config in configs}) == len(configs) == net.space.distinct
    assert configs[:2] == [net.max_config, net.min_config]
    assert validation_configs(net, 5, seed=3) == validation_configs(net, 5, seed=3)
