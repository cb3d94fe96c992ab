"""The exact search over spaces whose values have several producers finds what listing all SubNets finds."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import tailor_ir
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.resources import MemoryPredictor
from tasks.prediction.sums import Sums
from tasks.search.problem import Problem
from tasks.search.settings import Settings
from tasks.search.stage import method_of
from tests.support.ir.detours import with_detours
from tests.support.ir.networks import small_net

SPEC: SpaceSpec = {
    "stage.1.depth": [-2, -1, 0],
    "stage.1.width_mult": [0.5, 1],
    "stage.1.block.*.expand_ratio": [0.5, 1, 2],
    "*.detour": "auto",
}
TOLERANCE = 1e-3
OFFSET_MS = 0.1


ALTERNATIVES: SpaceSpec = {
    "stage.1.depth": [-1, 0],
    "stage.1.width_mult": [0.5, 1],
    "alternatives": ["merged", "pruned", "low_rank_0.5"],
}


@pytest.fixture(scope="module", params=["detours", "alternatives", "derived columns"])
def net(request: pytest.FixtureRequest) -> tailor_ir.SuperNet:
    """Derived columns: as on networks with many blocks, whose masks would be large."""
    sample = torch.randn(1, 3, 16, 16)
    if request.param == "detours":
        return with_detours(small_net(), sample, SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tailor_ir.spaces.presence.LARGEST_MASK", 4 if request.param == "derived columns" else 10_000)
        patch.setattr("tailor_ir.spaces.presence.MOST_VARIABLES", 9)
        net = tailor_ir.compile(small_net(blocks=4), sample, ALTERNATIVES)
        assert MemoryPredictor.compile(net).predict(net.space.cardinalities[None] - 1) > 0  # while masks are patched
    assert bool(net.space.derived) == (request.param == "derived columns")
    return net


def random_latencies(net: tailor_ir.SuperNet, seed: int) -> dict[tailor_ir.OperatorFeature, float]:
    rng = np.random.default_rng(seed)
    return {feature: float(rng.uniform(0.1, 2)) for feature in net.unique_operators()}


def predictors(net: tailor_ir.SuperNet, seed: int) -> tuple[LatencyPredictor, AccuracyPredictor]:
    """Random latencies of operators, random accuracies of modifications."""
    rng = np.random.default_rng(seed)
    latencies = random_latencies(net, seed)
    none = Sums(net.space.cardinalities.tolist(), (), net.space.derived)
    latency = LatencyPredictor(Sums.compile(net, latencies), Correction(offset_ms=OFFSET_MS), none)
    measured = [
        Accuracy(int(rng.integers(500, 900)), 1000, float(rng.uniform(0.5, 1))) for _ in modifications(net.space)
    ]
    return latency, AccuracyPredictor(sensitivities(net.space, measured))


def all_codes(net: tailor_ir.SuperNet) -> np.ndarray:
    codes = np.array(list(product(*(range(n) for n in net.space.cardinalities))))
    return np.unique(net.space.canonical_codes(codes), axis=0)


@pytest.mark.parametrize("seed", range(4))
def test_winners_are_the_best_of_all_subnets(net: tailor_ir.SuperNet, seed: int) -> None:
    latency, accuracy = predictors(net, seed)
    codes = all_codes(net)
    found = latency.predict(codes)
    alone = random_latencies(net, seed)
    for at in range(0, len(codes), len(codes) // 40):
        operators = net.operators(net.space.decode(codes[at]))
        assert found[at] == pytest.approx(OFFSET_MS + sum(alone[feature] for feature in operators))
    scores = accuracy.score(codes)
    method = method_of(Problem(net.space, latency, accuracy), net.space, Settings(method="exact"))
    for budget_ms in np.quantile(found, [0, 0.05, 0.2, 0.5, 0.8, 1]) * (1 + 1e-9):
        winner = method.winner(np.array([budget_ms]))
        best = scores[found <= budget_ms].max()
        assert latency.predict(winner.code[None])[0] <= budget_ms * (1 + 1e-9)
        assert accuracy.score(winner.code[None])[0] >= best - TOLERANCE


def test_sums_are_read_as_they_were_written(net: tailor_ir.SuperNet, tmp_path: Path) -> None:
    sums = Sums.compile(net, random_latencies(net, 0))
    sums.save(tmp_path / "sums.json")
    codes = all_codes(net)
    np.testing.assert_array_equal(Sums.load(tmp_path / "sums.json").predict(codes), sums.predict(codes))


@pytest.mark.parametrize("seed", range(2))
def test_a_limit_of_memory_is_kept_by_the_best_subnet_that_keeps_it(net: tailor_ir.SuperNet, seed: int) -> None:
    latency, accuracy = predictors(net, seed)
    memory = MemoryPredictor.compile(net)
    codes = all_codes(net)
    times, sizes, scores = latency.predict(codes), memory.predict(codes), accuracy.score(codes)
    method = method_of(Problem(net.space, latency, accuracy, (memory,)), net.space, Settings(method="exact"))
    for share in (0.3, 0.7):
        budgets = np.array([np.quantile(times, share), np.quantile(sizes, share)]) * (1 + 1e-9)
        winner = method.winner(budgets)
        kept = (times <= budgets[0]) & (sizes <= budgets[1])
        assert accuracy.score(winner.code[None])[0] >= scores[kept].max() - TOLERANCE
        assert memory.predict(winner.code[None])[0] <= budgets[1]
