"""The compiled latency predictor equals the sum over the operators, and refuses what it cannot know."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tailor_ir
from tasks.base.errors import UserError
from tasks.measuring.lut import DeviceKey, Entry, Lut, json_text
from tasks.prediction.latency import Correction, LatencyPredictor, OperatorSums, errors, network_of, subnet_ms

DEVICE = DeviceKey(backend="ncnn", build="abc", precision="fp32", threads=1, fingerprint="f0")


@pytest.fixture(scope="module")
def net(supernet: Path) -> tailor_ir.SuperNet:
    return tailor_ir.load(supernet)


@pytest.fixture
def lut(net: tailor_ir.SuperNet, tmp_path: Path) -> Lut:
    rng = np.random.default_rng(0)
    lut = Lut.open(tmp_path / "lut", DEVICE)
    entries = []
    for feature in net.unique_operators():
        p50_ms = float(rng.uniform(0.001, 2.0))
        text = json_text(feature.to_json())
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


def test_prediction_equals_the_sum_over_the_operators_of_every_subnet(net: tailor_ir.SuperNet, lut: Lut) -> None:
    correction = Correction(offset_ms=0.3, overhead_ms=0.002, factor=0.8, factors={"Conv": 0.7})
    predictor = LatencyPredictor.compile(net, lut, correction)
    codes = all_codes(net)
    assert len(codes) == net.space.distinct
    slow = [subnet_ms(net, lut, correction, net.space.decode(code)) for code in codes]
    np.testing.assert_allclose(predictor.predict(codes), slow, rtol=0, atol=1e-9)
    assert len(set(slow)) > len(codes) / 2


def test_saved_predictor_predicts_exactly_the_same(net: tailor_ir.SuperNet, lut: Lut, tmp_path: Path) -> None:
    predictor = LatencyPredictor.compile(net, lut, Correction(offset_ms=0.1, factor=1.1))
    predictor.save(tmp_path / "latency.json")
    codes = all_codes(net)
    again = LatencyPredictor.load(tmp_path / "latency.json")
    np.testing.assert_array_equal(again.predict(codes), predictor.predict(codes))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"cardinalities": [1], "extra": 2}'])
def test_damaged_predictor_is_one_clear_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "latency.json").write_bytes(content)
    with pytest.raises(UserError, match=r"predictor .*run the predict stage again") as caught:
        LatencyPredictor.load(tmp_path / "latency.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("saved", [False, True])
def test_subnets_with_a_failed_operator_are_refused_by_name_and_others_predicted(
    net: tailor_ir.SuperNet, lut: Lut, tmp_path: Path, saved: bool
) -> None:
    present = {f.digest for f in net.operators(net.max_config)} - {f.digest for f in net.operators(net.min_config)}
    entry = lut.get(min(present))
    assert entry is not None
    lut.append([replace(entry, state="failed", reason="out of memory", p50_ms=None, p90_ms=None, spread=None)])
    predictor = LatencyPredictor.compile(net, lut)
    if saved:
        predictor.save(tmp_path / "latency.json")
        predictor = LatencyPredictor.load(tmp_path / "latency.json")
    smallest, largest = net.space.encode([net.min_config, net.max_config])
    assert np.isfinite(predictor.predict(smallest[None])).all()
    with pytest.raises(UserError, match=rf"1 of 2 SubNets .*{entry.operator} .*out of memory"):
        predictor.predict(np.stack([smallest, largest]))


def test_an_operator_that_was_never_measured_is_named(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    predictor = LatencyPredictor.compile(net, Lut.open(tmp_path / "empty", DEVICE))
    with pytest.raises(UserError, match=r"not measured.* and \d+ more"):
        predictor.predict(net.space.encode([net.max_config]))


def test_the_compiled_sum_without_a_correction_is_that_of_the_table(net: tailor_ir.SuperNet, lut: Lut) -> None:
    codes = all_codes(net)[::7]
    sums_ms = [network_of(net, lut, net.space.decode(code)).sum_ms for code in codes]
    np.testing.assert_allclose(LatencyPredictor.compile(net, lut).predict(codes), sums_ms, rtol=0, atol=1e-9)


def test_an_operator_that_runs_in_another_adds_nothing(net: tailor_ir.SuperNet, lut: Lut) -> None:
    config = net.max_config
    feature = net.operators(config)[0]
    before = network_of(net, lut, config)
    entry = lut.get(feature.digest)
    assert entry is not None
    fused = replace(entry, state="fused", method="in situ", p50_ms=None, p90_ms=None, spread=None)
    lut.append([fused])
    after = network_of(net, lut, config)
    assert after.operators < before.operators
    assert after.sum_ms < before.sum_ms
    correction = Correction(overhead_ms=0.5)
    code = net.space.encode([config])
    predicted = LatencyPredictor.compile(net, lut, correction).predict(code)
    assert predicted[0] == pytest.approx(after.sum_ms + 0.5 * after.operators, abs=1e-9)


def networks(rng: np.random.Generator, count: int) -> list[OperatorSums]:
    """Networks of two families of operators."""
    return [
        OperatorSums(int(rng.integers(20, 60)), {"Conv": float(rng.uniform(1, 9)), "Add": float(rng.uniform(0.2, 3))})
        for _ in range(count)
    ]


def latency_ms(network: OperatorSums, offset_ms: float, overhead_ms: float, conv: float, add: float) -> float:
    return offset_ms + overhead_ms * network.operators + conv * network.sums_ms["Conv"] + add * network.sums_ms["Add"]


def corrected_ms(correction: Correction, network: OperatorSums) -> float:
    sums = sum(correction.factors[name] * value for name, value in network.sums_ms.items())
    return correction.offset_ms + correction.overhead_ms * network.operators + sums


@pytest.mark.parametrize("law", [(0.0, 0.0, 0.9, 0.9), (0.1, 0.002, 0.8, 1.0), (0.0, -0.004, 1.1, 0.95)])
def test_correction_predicts_networks_that_follow_it(law: tuple[float, float, float, float]) -> None:
    rng = np.random.default_rng(0)
    seen, unseen = networks(rng, 12), networks(rng, 50)
    correction = Correction.fit(seen, np.array([latency_ms(one, *law) for one in seen]))
    errors_ = [abs(corrected_ms(correction, one) / latency_ms(one, *law) - 1) for one in unseen]
    assert np.median(errors_) < 0.02
    assert correction.spread is not None
    assert correction.spread < 0.05


def test_correction_is_not_moved_by_disturbed_measurements() -> None:
    rng = np.random.default_rng(1)
    seen, unseen = networks(rng, 14), networks(rng, 50)
    measured_ms = np.array([latency_ms(one, 0.0, 0.0, 1.2, 1.2) for one in seen])
    measured_ms[[3, 9]] *= (3.5, 2.0)
    correction = Correction.fit(seen, measured_ms)
    errors_ = [abs(corrected_ms(correction, one) / latency_ms(one, 0.0, 0.0, 1.2, 1.2) - 1) for one in unseen]
    assert np.median(errors_) < 0.03


def test_one_network_scales_all_families_alike() -> None:
    correction = Correction.fit([OperatorSums(30, {"Conv": 4.0, "Add": 1.0})], np.array([10.0]))
    assert correction.factors["Conv"] == pytest.approx(2.0, rel=0.05)
    assert correction.factors["Add"] == pytest.approx(2.0, rel=0.05)


@given(st.lists(st.tuples(st.floats(0.1, 9), st.floats(0.1, 9), st.floats(0.05, 40)), min_size=1, max_size=8))
def test_correction_never_makes_an_operator_free_or_a_fitted_network_faster_than_nothing(
    rows: list[tuple[float, float, float]],
) -> None:
    seen = [OperatorSums(10, {"Conv": conv, "Add": add}) for conv, add, _ in rows]
    correction = Correction.fit(seen, np.array([measured for *_, measured in rows]))
    assert all(factor > 0 for factor in correction.factors.values())
    assert correction.operator_ms("Conv", 0.01) > 0
    assert correction.operator_ms("never seen", 0.01) > 0
    assert correction.operator_ms("Conv", 0.0) == 0.0


def test_errors_are_relative_to_what_was_measured() -> None:
    found = errors(np.array([1.0, 2.3, 2.5]), np.array([1.0, 2.0, 5.0])).to_json()
    assert found["n"] == 3
    assert found["median_relative_error"] == pytest.approx(0.15)
    assert found["max_relative_error"] == pytest.approx(0.5)
    assert found["kendall_tau"] == pytest.approx(1.0)
    assert found["within_10_percent"] == pytest.approx(1 / 3)
