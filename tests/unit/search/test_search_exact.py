"""The exact search over the tables of a SuperNet's predictors; what it cannot search is refused in one line."""

from typing import Any

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from solvers.chain import Chain
from solvers.exact import optimum
from solvers.tables import Table
from tailor_ir.spaces.selectors import SpaceSpec
from tasks.base.errors import UserError
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, Interaction, MeasuredAccuracy, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sensitivity import strongest_pairs
from tasks.prediction.sums import Sums
from tasks.search.problem import chain_of, chain_of_tables, cost_tables
from tests.support.ir.networks import small_net

NETWORKS = ["test_resnet", "mobilenetv3_small_050", "test_vit"]


def predictors(net: Any, seed: int) -> tuple[LatencyPredictor, AccuracyPredictor]:
    """Latencies that are random; accuracies that fall with the MACs a modification saves, with noise; random interactions."""
    rng = np.random.default_rng(seed)
    latencies = {feature: float(rng.exponential()) for feature in net.unique_operators()}
    latency = LatencyPredictor(
        Sums.compile(net, latencies), Correction(offset_ms=1.5), Sums(net.space.cardinalities.tolist(), ())
    )
    shares = [net.macs(config) / net.macs(net.max_config) for config in modifications(net.space)]
    measured = [Accuracy(int(900 * s**0.1 + rng.integers(20)), 1000, 2 - s + rng.uniform(0, 0.1)) for s in shares]
    plain = AccuracyPredictor(sensitivities(net.space, measured))
    interactions = []
    for code in strongest_pairs(net, plain, 12):
        both = [(v, v.choices[k]) for v, k in zip(net.space.variables, code, strict=True) if k < len(v.choices) - 1]
        interactions.append(
            Interaction(
                variables=(both[0][0].name, both[1][0].name),
                choices=(both[0][1], both[1][1]),
                measured=MeasuredAccuracy(accuracy=rng.uniform(0.5, 0.9), loss=rng.uniform(1, 2)),
                standard_error=0.01,
            )
        )
    assert len(interactions) > 2
    return latency, AccuracyPredictor(plain.table.model_copy(update={"interactions": tuple(interactions)}))


@pytest.mark.few("test_resnet")
@pytest.mark.parametrize("name", NETWORKS)
def test_the_chain_of_a_supernet_gives_what_its_predictors_give(name: str) -> None:
    torch.manual_seed(0)
    net = tailor_ir.compile(timm.create_model(name, num_classes=10).eval(), torch.zeros(1, 3, *SIZES[name]))
    latency, accuracy = predictors(net, 0)
    chain = chain_of(net.space, accuracy, cost_tables(latency))
    rng = np.random.default_rng(0)
    raw = rng.integers(0, net.space.cardinalities, size=(200, len(net.space.variables)))
    canonical = net.space.canonical_codes(raw)
    gains, costs = zip(*(walked(chain, code) for code in raw), strict=True)
    largest = accuracy.score(net.space.cardinalities[None] - 1)[0]
    np.testing.assert_allclose(np.array(gains) + largest, accuracy.score(canonical), atol=1e-9)
    np.testing.assert_allclose(costs, latency.predict(canonical), rtol=1e-9)


@pytest.mark.parametrize("blocks", [2, 3])
def test_the_optimum_of_sizes_and_alternatives_is_that_of_brute_force(blocks: int) -> None:
    spec: SpaceSpec = {
        "alternatives": ["merged", "pruned_0.5"],
        "*.depth": "auto",
        "*.width_mult": [0.5, 1],
        "*.expand_ratio": [1, 2],
    }
    net = tailor_ir.compile(small_net(blocks=blocks), torch.zeros(1, 3, 16, 16), spec)
    assert net.space.derived
    latency, accuracy = predictors(net, 2)
    chain = chain_of(net.space, accuracy, cost_tables(latency))
    raw = np.indices(net.space.cardinalities.tolist()).reshape(len(net.space.variables), -1).T
    codes = np.unique(net.space.canonical_codes(raw), axis=0)
    assert len(codes) == net.space.distinct
    latency_ms, score = latency.predict(codes), accuracy.score(codes)
    largest = accuracy.score(net.space.cardinalities[None] - 1)[0]
    for budget_ms in np.quantile(latency_ms, (0, 0.01, 0.1, 0.3, 0.6, 0.9, 1)):
        found = optimum(chain, np.array([budget_ms]))
        assert found.error == found.gap == 0
        assert found.gain + largest == pytest.approx(score[latency_ms <= budget_ms * (1 + 1e-9)].max(), abs=1e-9)


SIZES = {"test_resnet": (32, 32), "mobilenetv3_small_050": (64, 64), "test_vit": (160, 160)}


def walked(chain: Chain, code: np.ndarray) -> tuple[float, float]:
    """Gain and cost of a code, one elimination after the other."""
    state, gain, cost = 0, 0.0, 0.0
    for each in chain.eliminations:
        entry = each.entries[state, code[each.variable]]
        gain += each.gain[entry]
        cost += each.costs[0, entry]
        state = each.after[entry]
    return gain, cost


@pytest.mark.few("test_resnet")
@pytest.mark.parametrize("name", NETWORKS)
def test_no_random_subnet_is_better_than_the_optimum_of_a_supernet(name: str) -> None:
    torch.manual_seed(0)
    net = tailor_ir.compile(timm.create_model(name, num_classes=10).eval(), torch.zeros(1, 3, *SIZES[name]))
    latency, accuracy = predictors(net, 1)
    chain = chain_of(net.space, accuracy, cost_tables(latency))
    codes = net.space.random_codes(20_000, np.random.default_rng(0))
    latency_ms, score = latency.predict(codes), accuracy.score(codes)
    for budget_ms in np.quantile(latency_ms, (0.01, 0.2, 0.5, 0.9)):
        found = optimum(chain, np.array([budget_ms]))
        canonical = net.space.canonical_codes(found.code[None])
        assert latency.predict(canonical)[0] <= budget_ms * (1 + 1e-9)
        assert accuracy.score(canonical)[0] >= score[latency_ms <= budget_ms].max() - 1e-9


def test_variables_that_all_depend_on_each_other_are_refused() -> None:
    cardinalities = [40] * 8
    tables = [Table((i, j), np.zeros((40, 40))) for i in range(8) for j in range(i)]
    with pytest.raises(
        UserError, match=r"search\.method=exact: the predictors tie too many variables together.*genetic"
    ):
        chain_of_tables(cardinalities, tables, [tables])


@pytest.mark.parametrize("where", ["gain", "cost"])
def test_a_table_without_a_number_is_refused(where: str) -> None:
    tables = [Table((0,), np.array([1.0, 2.0])), Table((1,), np.array([1.0, np.nan]))]
    sums = {"gain": tables[:1], "cost": tables[:1], where: tables}
    with pytest.raises(UserError, match=r"^search\.method=exact: a predictor gives no number \(NaN\).*predict stage"):
        chain_of_tables([2, 2], sums["gain"], [sums["cost"]])
