"""The compiled latency predictor equals the sum over the operators, and refuses what it cannot know."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import tailor_ir
from tasks.errors import UserError
from tasks.lut import DeviceKey, Entry, Lut, feature_text
from tasks.predict.correction import Correction
from tasks.predict.latency import LatencyPredictor, operators_sum_ms
from tasks.predict.validate import errors

DEVICE = DeviceKey(backend="ncnn", build="abc", precision="fp32", threads=1, fingerprint="f0")


@pytest.fixture(scope="module")
def net(supernet: Path) -> tailor_ir.SuperNet:
    return tailor_ir.load(supernet)


@pytest.fixture
def lut(net, tmp_path) -> Lut:
    rng = np.random.default_rng(0)
    lut = Lut.open(tmp_path / "lut", DEVICE)
    entries = []
    for feature in net.unique_operators():
        p50_ms = float(rng.uniform(0.001, 2.0))
        text = feature_text(feature.to_json())
        entries.append(
            Entry(
                digest=feature.digest,
                operator=feature.operator,
                feature=text,
                state="ok",
                p50_ms=p50_ms,
                p90_ms=p50_ms,
                spread=0.0,
                n=5,
                noisy=False,
                measured_at="2026-01-01T00:00:00+00:00",
            )
        )
    lut.append(entries)
    return lut


def all_codes(net: tailor_ir.SuperNet) -> np.ndarray:
    counts = [range(len(variable.choices)) for variable in net.space.variables]
    return np.unique(net.space.canonical_codes(np.array(list(product(*counts)))), axis=0)


def test_prediction_equals_the_sum_over_the_operators_of_every_subnet(net, lut):
    correction = Correction(offset_ms=0.3, factor=0.8)
    predictor = LatencyPredictor.compile(net, lut).corrected(correction)
    codes = all_codes(net)
    assert len(codes) == net.space.distinct
    slow = [0.3 + 0.8 * operators_sum_ms(net, lut, net.space.decode(code)) for code in codes]
    np.testing.assert_allclose(predictor.predict(codes), slow, rtol=0, atol=1e-9)
    assert len(set(slow)) > len(codes) / 2


def test_saved_predictor_predicts_exactly_the_same(net, lut, tmp_path):
    predictor = LatencyPredictor.compile(net, lut).corrected(Correction(offset_ms=0.1, factor=1.1))
    predictor.save(tmp_path / "latency.json")
    codes = all_codes(net)
    again = LatencyPredictor.load(tmp_path / "latency.json")
    np.testing.assert_array_equal(again.predict(codes), predictor.predict(codes))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"cardinalities": [1], "extra": 2}'])
def test_damaged_predictor_is_one_clear_line(content, tmp_path):
    (tmp_path / "latency.json").write_bytes(content)
    with pytest.raises(UserError, match=r"latency predictor.*run the predict stage again") as caught:
        LatencyPredictor.load(tmp_path / "latency.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("saved", [False, True])
def test_subnets_with_a_failed_operator_are_refused_by_name_and_others_predicted(net, lut, tmp_path, saved):
    present = {f.digest for f in net.operators(net.max_config)} - {f.digest for f in net.operators(net.min_config)}
    entry = lut.get(min(present))
    lut.append([replace(entry, state="failed", reason="out of memory", p50_ms=None, p90_ms=None, spread=None)])
    predictor = LatencyPredictor.compile(net, lut)
    if saved:
        predictor.save(tmp_path / "latency.json")
        predictor = LatencyPredictor.load(tmp_path / "latency.json")
    smallest, largest = net.space.encode([net.min_config, net.max_config])
    assert np.isfinite(predictor.predict(smallest[None])).all()
    with pytest.raises(UserError, match=rf"1 of 2 SubNets .*{entry.operator} .*out of memory"):
        predictor.predict(np.stack([smallest, largest]))


def test_an_operator_that_was_never_measured_is_named(net, tmp_path):
    predictor = LatencyPredictor.compile(net, Lut.open(tmp_path / "empty", DEVICE))
    with pytest.raises(UserError, match=r"not measured.* and \d+ more"):
        predictor.predict(net.space.encode([net.max_config]))


def test_correction_is_recovered_from_networks_that_follow_it():
    sums_ms = np.array([1.0, 2.0, 5.0, 9.0])
    correction = Correction.fit(sums_ms, 0.4 + 0.9 * sums_ms)
    assert correction.offset_ms == pytest.approx(0.4, abs=1e-4)
    assert correction.factor == pytest.approx(0.9, abs=1e-4)


def test_correction_weighs_relative_errors():
    sums_ms, measured_ms = np.array([1.0, 100.0]), np.array([2.0, 150.0])
    fitted = Correction.fit(np.repeat(sums_ms, 2), np.repeat(measured_ms, 2) * np.array([0.97, 1.03, 0.97, 1.03]))
    relative = np.abs(fitted.apply(sums_ms) - measured_ms) / measured_ms
    assert relative.max() < 0.03


def test_correction_is_not_moved_by_a_disturbed_measurement():
    sums_ms = np.array([0.1, 0.3, 0.5, 0.7, 1.0, 1.4, 1.9])
    measured_ms = 1.2 * sums_ms
    disturbed = measured_ms * np.array([1.0, 1.0, 3.5, 1.0, 1.0, 6.0, 1.0])
    fitted = Correction.fit(sums_ms, disturbed)
    assert np.abs(fitted.apply(sums_ms) / measured_ms - 1).max() < 0.05


@pytest.mark.parametrize(
    ("sums_ms", "measured_ms"),
    [([2.0, 1.0], [1.0, 2.0]), ([1.0, 1.0], [1.0, 1.2]), ([1.0], [3.0]), ([1.0, 9.0, 10.0], [0.01, 9.0, 10.0])],
)
def test_correction_never_orders_networks_backwards_nor_below_zero(sums_ms, measured_ms):
    sums = np.array(sums_ms)
    correction = Correction.fit(sums, np.array(measured_ms))
    assert correction.factor > 0
    assert (correction.apply(sums) > 0).all()


def test_errors_are_relative_to_what_was_measured():
    found = errors(np.array([1.0, 2.3, 2.5]), np.array([1.0, 2.0, 5.0]))
    assert found["n"] == 3
    assert found["median_relative_error"] == pytest.approx(0.15)
    assert found["max_relative_error"] == pytest.approx(0.5)
    assert found["kendall_tau"] == pytest.approx(1.0)
    assert found["within_10_percent"] == pytest.approx(1 / 3)
