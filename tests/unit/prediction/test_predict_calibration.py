"""Energy calibrated by sensors: by hand where the answer is known, and populations as single SubNets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailor_ir
from tasks.base.errors import UserError
from tasks.base.schemas.predictions import LATENCY_VALIDATION_FILE, CheckedLatency, LatencyValidation
from tasks.base.schemas.stored import RelativeErrors
from tasks.measuring.lut import DeviceKey, Entry, Lut
from tasks.prediction import resources
from tasks.prediction.latency import LATENCY_FILE, LatencyPredictor
from tasks.prediction.resources import Calibration, EnergyPredictor, EnergySettings
from tests.support.ir.elastic_networks import compiled

DEVICE = DeviceKey(backend="ncnn", build="abc", precision="fp32", threads=1, fingerprint="f0")
OFFSET_MJ, FACTOR, MJ_PER_MS = 0.5, 40.0, 3.0


@pytest.fixture(scope="module")
def net() -> tailor_ir.SuperNet:
    return compiled("convolution and BatchNorm")


@pytest.fixture(scope="module")
def latency(net: tailor_ir.SuperNet, tmp_path_factory: pytest.TempPathFactory) -> LatencyPredictor:
    """From a table in which every operator has another latency, unrelated to its arithmetic."""
    rng = np.random.default_rng(0)
    lut = Lut.open(tmp_path_factory.mktemp("lut"), DEVICE)
    for feature in net.unique_operators():
        p50_ms = float(rng.uniform(0.1, 2.0))
        values: dict[str, Any] = {"digest": feature.digest, "operator": feature.operator, "feature": "{}", "n": 9}
        values |= {"state": "ok", "noisy": False, "measured_at": "2026-01-01T00:00:00+00:00", "spread": 0.1}
        lut.append([Entry(**values, p50_ms=p50_ms, p90_ms=p50_ms)])
    return LatencyPredictor.compile(net, lut)


def population(net: tailor_ir.SuperNet, count: int = 40) -> np.ndarray:
    """The largest, the smallest and random SubNets."""
    rng = np.random.default_rng(1)
    configs = [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(count - 2))]
    return net.space.encode(configs)


def stage_folder(folder: Path, net: tailor_ir.SuperNet, latency: LatencyPredictor, energies: list[Any]) -> Path:
    """What a latency stage leaves that measured these energies [mJ], the last two held out."""
    folder.mkdir(parents=True, exist_ok=True)
    latency.save(folder / LATENCY_FILE)
    rows = tuple(
        CheckedLatency(
            digest=net.space.digest(net.space.decode(code)),
            config=net.space.decode(code),
            kind="random",
            used_for="fit" if n < len(energies) - 2 else "held out",
            sum_ms=1.0,
            predicted_ms=1.0,
            measured_ms=1.0,
            noisy=False,
            energy_mj=energy,
        )
        for n, (code, energy) in enumerate(zip(population(net), energies, strict=False))
    )
    none = RelativeErrors(n=0)
    LatencyValidation(correction={}, fit=none, held_out=none, subnets=rows).write(folder / LATENCY_VALIDATION_FILE)
    return folder


def test_coefficients_are_those_that_made_the_energies() -> None:
    """By hand: 1 + 2 · model + 3 · latency."""
    model_mj, latency_ms = np.array([0.0, 1.0, 0.0, 2.0]), np.array([0.0, 0.0, 1.0, 1.0])
    found = Calibration.fit(model_mj, latency_ms, np.array([1.0, 3.0, 4.0, 8.0]))
    assert (found.offset_mj, found.factor, found.mj_per_ms) == pytest.approx((1.0, 2.0, 3.0), rel=1e-9)
    assert found.subnets == 4
    assert found.spread == pytest.approx(0.0, abs=1e-9)
    assert found.energy_mj(np.array([5.0]), np.array([7.0])) == pytest.approx([32.0], rel=1e-9)


def test_no_coefficient_is_negative_and_the_rest_fits_best() -> None:
    """By hand: energies fall with the latency, so its coefficient is 0. A constant c makes Σ (c / energy − 1)² least."""
    found = Calibration.fit(np.zeros(3), np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0]))
    constant_mj = (1 / 3 + 1 / 2 + 1) / (1 / 9 + 1 / 4 + 1)
    assert (found.offset_mj, found.factor, found.mj_per_ms) == pytest.approx((constant_mj, 0.0, 0.0), abs=1e-9)
    errors = np.array([constant_mj / 3, constant_mj / 2, constant_mj]) - 1
    assert found.spread == pytest.approx((errors @ errors / 2) ** 0.5, rel=1e-9)


def test_one_reading_while_something_else_ran_changes_little() -> None:
    rng = np.random.default_rng(0)
    model_mj, latency_ms = rng.uniform(1, 2, 12), rng.uniform(1, 9, 12)
    true_mj = 0.1 + model_mj + 2 * latency_ms
    measured_mj = true_mj.copy()
    measured_mj[5] *= 20
    np.testing.assert_allclose(
        Calibration.fit(model_mj, latency_ms, measured_mj).energy_mj(model_mj, latency_ms), true_mj, rtol=0.1
    )


def test_as_many_subnets_as_coefficients_leave_no_spread() -> None:
    found = Calibration.fit(np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, 1.0]), np.array([1.0, 3.0, 4.0]))
    assert found.spread is None


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_the_unit_of_the_model_does_not_change_what_is_predicted(unit: float) -> None:
    rng = np.random.default_rng(0)
    model_mj, latency_ms = rng.uniform(1, 2, 12), rng.uniform(1, 9, 12)
    measured_mj = 0.1 + model_mj + 2 * latency_ms
    found = Calibration.fit(unit * model_mj, latency_ms, measured_mj)
    np.testing.assert_allclose(found.energy_mj(unit * model_mj, latency_ms), measured_mj, rtol=1e-7)


def test_a_calibrated_population_is_each_subnet_by_itself_and_is_read_as_it_was_written(
    net: tailor_ir.SuperNet, latency: LatencyPredictor, tmp_path: Path
) -> None:
    codes, model = population(net), EnergyPredictor.compile(net, EnergySettings())
    measured_mj = OFFSET_MJ + FACTOR * model.predict(codes) + MJ_PER_MS * latency.predict(codes)
    predictor = model.calibrated(latency, codes[:8], measured_mj[:8])
    found = predictor.predict(codes)
    np.testing.assert_allclose(found, measured_mj, rtol=1e-6)
    np.testing.assert_allclose(found, [predictor.predict(code[None])[0] for code in codes], rtol=1e-12)
    np.testing.assert_array_equal(predictor.model(codes), model.predict(codes))
    predictor.save(tmp_path / "energy.json")
    np.testing.assert_array_equal(EnergyPredictor.load(tmp_path / "energy.json").predict(codes), found)


@pytest.mark.parametrize("batch", [1, 8])
def test_the_stage_calibrates_by_the_fitting_subnets_and_states_its_error_on_the_others(
    net: tailor_ir.SuperNet, latency: LatencyPredictor, tmp_path: Path, batch: int
) -> None:
    codes = population(net)[:10]
    model = EnergyPredictor.compile(net, EnergySettings()).predict(codes)
    sample_mj = OFFSET_MJ + FACTOR * model + MJ_PER_MS * latency.predict(codes)
    energies = (batch * sample_mj * [*[1.0] * 8, 1.1, 1.1]).tolist()
    energies[3], energies[4] = None, 0.0  # unknown
    net.save(tmp_path / "supernet")
    folder = stage_folder(tmp_path / "latency", net, latency, energies)
    result = resources.run(resources.Settings(), tmp_path / "supernet", tmp_path, folder, batch)
    assert result["energy_from"] == "sensor"
    assert result["energy_calibration"]["subnets"] == 6
    assert result["energy_calibration"]["spread"] == pytest.approx(0.0, abs=1e-6)
    assert result["energy_held_out"]["median_relative_error"] == pytest.approx(1 - 1 / 1.1, rel=1e-5)
    assert [row["energy_mj"] for row in result["subnets"]] == pytest.approx(sample_mj[:2].tolist(), rel=1e-6)
    np.testing.assert_allclose(
        EnergyPredictor.load(tmp_path / resources.ENERGY_FILE).predict(codes), sample_mj, rtol=1e-6
    )
    assert json.loads((tmp_path / resources.RESOURCES_FILE).read_text()) == result


@pytest.mark.parametrize("energies", [[None] * 8, [0.0] * 8, [1.0, None, 2.0, 0.0, None, 0.0, 3.0, 4.0]])
def test_with_fewer_than_three_fitting_energies_the_model_stays(
    net: tailor_ir.SuperNet, latency: LatencyPredictor, tmp_path: Path, energies: list[float | None]
) -> None:
    net.save(tmp_path / "supernet")
    folder = stage_folder(tmp_path / "latency", net, latency, energies)
    result = resources.run(resources.Settings(), tmp_path / "supernet", tmp_path, folder)
    model = EnergyPredictor.compile(net, EnergySettings()).predict(population(net)[:2])
    assert result["energy_from"] == "model"
    assert "energy_calibration" not in result
    assert [row["energy_mj"] for row in result["subnets"]] == model.tolist()


def test_a_calibration_without_its_latencies_is_no_predictor(
    net: tailor_ir.SuperNet, latency: LatencyPredictor, tmp_path: Path
) -> None:
    codes, file = population(net), tmp_path / "energy.json"
    EnergyPredictor.compile(net, EnergySettings()).calibrated(latency, codes, latency.predict(codes)).save(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"latency": None}))
    with pytest.raises(UserError, match=r"energy\.json'.*run the predict stage again"):
        EnergyPredictor.load(file)
