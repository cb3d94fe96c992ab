"""Accuracies that are learned from SubNets that were evaluated, where sensitivities do not add up; smoothed latencies."""

from typing import Any

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.evaluation.subnets import Accuracy
from tasks.evaluation.uncertainty import kendall_tau
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sums import Sums
from tasks.search.problem import Codes, Problem, Values, unique_rows
from tasks.search.refine.candidates import FEWEST, Around, LearnedAccuracy, smoothed_ms

IMAGES = 100_000


@pytest.fixture(scope="module")
def net() -> Any:
    torch.manual_seed(0)
    network = timm.create_model("resnet26t", num_classes=10).eval()
    space: SpaceSpec = {"resolution": [16, 24, 32], "*.width_mult": [0.5, 0.75, 1.0], "*.depth": [-1, 0]}
    return tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space)


def measured(net: Any, codes: Codes) -> list[Accuracy]:
    """Of a network whose parts have to be of a like size: what one lacks matters more where the others are large."""
    least, found = net.macs(net.min_config), []
    for code in codes:
        config = net.space.decode(code)
        compute = np.log(net.macs(config) / least)
        narrowest = min(value for name, value in config.items() if name.endswith("width_mult"))
        share = 0.95 - 0.3 * np.exp(-0.5 * compute) - 0.1 * (1 - narrowest) ** 2 * config["resolution"] / 32
        found.append(Accuracy(round(IMAGES * share), IMAGES, float(-np.log(share))))
    return found


@pytest.fixture(scope="module")
def summed(net: Any) -> AccuracyPredictor:
    codes = net.space.canonical_codes(net.space.encode(modifications(net.space)))
    return AccuracyPredictor(sensitivities(net.space, measured(net, codes)))


def shares(net: Any, codes: Codes) -> Values:
    return np.array([one.share for one in measured(net, codes)])


def random(net: Any, count: int, seed: int) -> Codes:
    found = unique_rows(net.space.canonical_codes(net.space.random_codes(4 * count, np.random.default_rng(seed))))[
        :count
    ]
    assert len(found) == count
    return found


@pytest.fixture(scope="module")
def learned(net: Any, summed: AccuracyPredictor) -> LearnedAccuracy:
    codes = random(net, 100, seed=1)
    found = LearnedAccuracy.of(net.space, summed, codes, measured(net, codes))
    assert found is not None
    return found


def test_what_was_evaluated_is_known_and_the_rest_predicted_better_than_by_sums(
    net: Any, summed: AccuracyPredictor, learned: LearnedAccuracy
) -> None:
    modified = net.space.canonical_codes(net.space.encode(modifications(net.space)))
    known = np.concatenate([random(net, 100, seed=1), modified])
    assert learned.predict(known) == pytest.approx(shares(net, known), abs=0.005)
    new = random(net, 200, seed=2)
    new = new[[not (known == code).all(axis=1).any() for code in new]]
    wrong, wrong_sums = (np.abs(model.predict(new) - shares(net, new)).mean() for model in (learned, summed))
    assert wrong < 0.3 * wrong_sums
    tau, tau_sums = (kendall_tau(model.score(new), shares(net, new)) for model in (learned, summed))
    assert tau is not None
    assert tau_sums is not None
    assert tau > tau_sums


def test_it_knows_how_sure_it_is(net: Any, learned: LearnedAccuracy) -> None:
    known, new = random(net, 100, seed=1), random(net, 200, seed=3)
    (_, near_deviation), (accuracy, deviation) = learned.guess(known), learned.guess(new)
    assert accuracy == pytest.approx(learned.score(new))
    assert near_deviation.mean() < 0.7 * deviation.mean()
    assert (np.abs(accuracy - shares(net, new)) <= 3 * deviation).mean() > 0.9


def test_of_what_was_evaluated_twice_the_last_counts(net: Any, summed: AccuracyPredictor) -> None:
    codes = net.space.canonical_codes(net.space.encode(modifications(net.space)))
    other = [Accuracy(IMAGES // 2, IMAGES, 1.0)] * len(codes)
    found = LearnedAccuracy.of(net.space, summed, codes, other)
    assert found is not None
    assert found.predict(random(net, 20, seed=4)) == pytest.approx(np.full(20, 0.5), abs=1e-3)


def test_too_few_teach_nothing(net: Any) -> None:
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=10).eval()
    small = tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), {"resolution": [24, 32]})
    codes = small.space.canonical_codes(small.space.encode(modifications(small.space)))
    found = measured_resolution(codes)
    predictor = AccuracyPredictor(sensitivities(small.space, found))
    assert len(codes) < FEWEST
    assert LearnedAccuracy.of(small.space, predictor, codes, found) is None
    same = [Accuracy(9, 10, 0.5)] * len(modifications(net.space))
    flat = AccuracyPredictor(sensitivities(net.space, same))
    assert LearnedAccuracy.of(net.space, flat, random(net, 20, 0), same[:1] * 20) is None


def test_smoothed_latencies_are_nearer_to_the_truth_than_measured_ones_and_not_lucky(
    net: Any, summed: AccuracyPredictor
) -> None:
    codes, rng = random(net, 200, seed=6), np.random.default_rng(0)
    configs = [net.space.decode(code) for code in codes]
    predicted_ms = np.array([net.macs(config) for config in configs]) / 1e6
    true_ms = predicted_ms * np.array([1.1 + 0.1 * (config["resolution"] / 32) for config in configs])
    measured_ms = true_ms * np.exp(0.04 * rng.standard_normal(len(codes)))
    found_ms = smoothed_ms(summed, codes, predicted_ms, measured_ms)
    wrong, noise = np.log(found_ms / true_ms), np.log(measured_ms / true_ms)
    assert np.std(wrong) < 0.5 * np.std(noise)
    lucky = noise < np.quantile(noise, 0.1)
    assert abs(wrong[lucky].mean()) < 0.2 * abs(noise[lucky].mean())
    few = slice(FEWEST - 1)
    assert smoothed_ms(summed, codes[few], predicted_ms[few], measured_ms[few]) == pytest.approx(measured_ms[few])


def measured_resolution(codes: Codes) -> list[Accuracy]:
    return [Accuracy(5 + int(code[0]), 10, 1.0 - 0.5 * float(code[0])) for code in codes]


def test_candidates_are_sought_from_where_no_two_modifications_are_better(net: Any, learned: LearnedAccuracy) -> None:
    full = net.macs(net.max_config)
    sums = Sums.compile(net, {one: one.macs / full for one in net.unique_operators()})
    cost = LatencyPredictor(sums, Correction(), Sums(net.space.cardinalities.tolist(), ()))
    problem = Problem(net.space, cost, learned)
    starts = random(net, 30, seed=5)
    limit = float(np.quantile(cost.predict(starts), 0.5))
    around = Around(problem, problem.unlimited, starts[:1])
    limits = np.array([limit])
    top = around.top(starts, limits)
    fits = starts[cost.predict(starts) <= limit]
    assert cost.predict(top[None])[0] <= limit
    assert learned.score(top[None])[0] >= learned.score(fits).max()
    (best, _), *_ = around.best(top, limits, 1, starts[:0])
    assert learned.score(best[None])[0] <= learned.score(top[None])[0]
    assert (around.top(starts, np.array([1e-9])) == starts[0]).all()
