"""Expected latency of whole SubNets: sums over operators, each with the share of samples that reach it."""

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailor_ir
from adaptive_runtime.exits import predict
from solvers.tables import Derived
from tailor_ir import SuperNet
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.base.progress import Silent
from tasks.base.schemas.predictions import MeasuredAccuracy, Sensitivities, Sensitivity
from tasks.exits.latency import ExpectedLatency, column_of, exits_of, expected_winners, weighed_by, with_exit
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sums import Sums
from tasks.search import SearchRequest, Settings, Target
from tasks.search import run as search
from tasks.search.stage import read_front
from tests.support import examples

EXITS = ("stage.1", "stage.2", "last")
PASSED_MS = np.array([0.02, 0.05, 0.0])
rates = st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any).map(lambda found: np.array(found) / sum(found))


@pytest.fixture(scope="module")
def net() -> SuperNet:
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10).eval()
    space: SpaceSpec = {"exits": EXITS[:-1], "stage.*.width_mult": [0.5, 1.0]}
    return tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space)


@pytest.fixture(scope="module")
def latency(net: SuperNet) -> LatencyPredictor:
    """Of a device that takes a millisecond for ten million multiply-accumulates."""
    numbers = {feature: 1e-7 * feature.macs + 0.01 for feature in net.unique_operators()}
    none = Sums.compile(net, dict.fromkeys(numbers, 0.0))
    return LatencyPredictor(Sums.compile(net, numbers), Correction(offset_ms=0.03), none)


@settings(deadline=None, max_examples=examples(25))
@given(rates=rates, seed=st.integers(0, 99))
def test_the_expected_latency_is_the_mean_over_exits_as_table_and_as_prediction(
    net: SuperNet, latency: LatencyPredictor, rates: np.ndarray, seed: int
) -> None:
    expected = ExpectedLatency(latency, column_of(net.space), rates, PASSED_MS)
    sums = expected.as_sums()
    assert sums is not None
    codes = net.space.canonical_codes(net.space.random_codes(20, np.random.default_rng(seed)))
    np.testing.assert_allclose(sums.predict(codes), expected.predict(codes), rtol=1e-9)
    for config in map(net.space.decode, codes):
        upto = [with_exit(net.space, config, name) for name in exits_of(net.space)]
        alone_ms = latency.predict(net.space.encode(upto))
        wanted = predict(rates, alone_ms + np.array([0.0, *np.cumsum(PASSED_MS[:-1])])).expected_ms
        found = expected.predict(net.space.encode([config]))[0]
        assert found == pytest.approx(wanted if config["exit"] == "last" else alone_ms[EXITS.index(config["exit"])])


def test_samples_that_all_go_on_take_the_whole_network_and_the_heads_on_the_way(
    net: SuperNet, latency: LatencyPredictor
) -> None:
    expected = weighed_by(latency, net.space, [0.0, 0.0, 1.0], PASSED_MS)
    code = net.space.encode([net.max_config])
    assert expected.predict(code)[0] == pytest.approx(latency.predict(code)[0] + PASSED_MS.sum())


def test_rates_up_to_a_full_answer_before_the_end_leave_the_rest_out(net: SuperNet, latency: LatencyPredictor) -> None:
    expected = weighed_by(latency, net.space, [0.5, 0.5], PASSED_MS)
    upto = [with_exit(net.space, net.max_config, name) for name in EXITS[:2]]
    wanted = latency.predict(net.space.encode(upto)).mean() + 0.5 * PASSED_MS[0]
    assert expected.predict(net.space.encode([net.max_config]))[0] == pytest.approx(wanted)


def test_tables_over_derived_columns_are_not_folded(net: SuperNet, latency: LatencyPredictor) -> None:
    derived = (Derived((0,), np.array([True] * int(net.space.cardinalities[0]))),)
    sums = Sums(latency.sums.cardinalities, latency.sums.tables, derived)
    other = LatencyPredictor(sums, latency.correction, latency.unknown)
    expected = ExpectedLatency(other, column_of(net.space), np.array([0.5, 0.25, 0.25]), PASSED_MS)
    assert expected.as_sums() is None
    plain = ExpectedLatency(latency, expected.column, expected.rates_E, PASSED_MS)
    codes = net.space.canonical_codes(net.space.random_codes(9, np.random.default_rng(0)))
    np.testing.assert_allclose(expected.predict(codes), plain.predict(codes))


def test_the_exact_search_by_expected_latency_finds_what_trying_all_finds(
    net: SuperNet, latency: LatencyPredictor, tmp_path: Path
) -> None:
    net.save(tmp_path / "supernet")
    accuracy = made_accuracy(net)
    target = Target(name="here", latency=latency)
    settings = Settings(method="exact")
    request = SearchRequest(supernet=tmp_path / "supernet", targets=[target], accuracy=accuracy, settings=settings)
    search(request, tmp_path, Silent())
    front = read_front(tmp_path / "front.json")
    expected = weighed_by(latency, net.space, [0.6, 0.3, 0.1], PASSED_MS)
    found = expected_winners(net, target, expected, accuracy, front, Silent())
    every = np.array(np.meshgrid(*[np.arange(n) for n in net.space.cardinalities], indexing="ij"))
    codes = np.unique(net.space.canonical_codes(every.reshape(len(every), -1).T), axis=0)
    costs_ms, scores = expected.predict(codes), accuracy.score(codes)
    assert len(found) == len(front.winners)
    for row in found:
        fitting = costs_ms <= row.budget_ms
        tolerance = np.ptp(scores[fitting]) * 1e-3
        assert row.predicted_ms <= row.budget_ms
        assert accuracy.score(net.space.encode([row.config]))[0] >= scores[fitting].max() - max(tolerance, 1e-6)
    plain = {row.budget_ms: row.predicted_accuracy for row in front.winners}
    gained = [row.predicted_accuracy - plain[row.budget_ms] for row in found]
    assert max(gained) > 0.01  # a whole SubNet, most of whose samples leave early, in the place of a smaller one


def made_accuracy(net: SuperNet) -> AccuracyPredictor:
    """Each choice below the largest costs points: early exits most."""

    def measured(points: float) -> MeasuredAccuracy:
        return MeasuredAccuracy(accuracy=0.9 - points / 100, loss=0.3 + points / 50)

    rows = []
    for variable in net.space.variables:
        places = len(variable.choices) - 1
        points = 15.0 if variable.name == "exit" else 3.0
        costs = [points * (places - place) for place in range(places + 1)]
        rows.append(Sensitivity(variable=variable.name, choices=variable.choices, measured=tuple(map(measured, costs))))
    return AccuracyPredictor(Sensitivities(samples=1000, largest=measured(0), variables=tuple(rows)))
