"""The exact search finds what listing all SubNets finds, within what it states."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailor_ir
from tasks.errors import UserError
from tasks.evaluate import Accuracy
from tasks.predict.accuracy import AccuracyPredictor, Interaction, Measured, modifications, sensitivities
from tasks.predict.correction import Correction
from tasks.predict.interactions import strongest_pairs
from tasks.predict.latency import LatencyPredictor
from tasks.predict.sums import Sums
from tasks.search import exact, passage
from tasks.search.chain import Chain, Table, Values
from tasks.search.exact import Infeasible, Optimum, Unknown, optimum
from tasks.search.terms import chain_of, cost_tables

seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=60, deadline=None)
NETWORKS = ["test_resnet", "mobilenetv3_small_050", "test_vit"]


def random_tables(rng: np.random.Generator, cardinalities: list[int], *, positive: bool) -> list[Table]:
    """Terms over neighbouring variables, over the first one and another, and over one variable each."""
    count = len(cardinalities)
    scopes = [(v,) for v in range(count)] + [(v, v + 1) for v in range(count - 1)] + [(0, v) for v in range(2, count)]
    scopes += [(v + 2, v) for v in range(count - 2) if rng.random() < 0.3]
    chosen = [scope for scope in scopes if rng.random() < 0.7] or [(0,)]
    tables: list[Table] = []
    for scope in chosen:
        shape = [cardinalities[column] for column in scope]
        tables.append((scope, rng.exponential(size=shape) if positive else rng.normal(size=shape)))
    return tables


def total(tables: list[Table], codes: np.ndarray) -> np.ndarray:
    return sum((values[tuple(codes[:, list(columns)].T)] for columns, values in tables), np.zeros(len(codes)))


def random_problem(seed: int, constraints: int) -> tuple[Chain, np.ndarray, np.ndarray, np.ndarray]:
    """The chain, all codes, and their gains and costs."""
    rng = np.random.default_rng(seed)
    cardinalities = rng.integers(1, 5, size=int(rng.integers(1, 8))).tolist()
    gain = random_tables(rng, cardinalities, positive=False)
    costs = [random_tables(rng, cardinalities, positive=True) for _ in range(constraints)]
    codes = np.array(list(product(*map(range, cardinalities))))
    chain = Chain(cardinalities, gain, costs)
    return chain, codes, total(gain, codes), np.stack([total(tables, codes) for tables in costs])


@some
@given(seeds, st.integers(1, 3), st.floats(0, 1))
def test_the_optimum_is_that_of_brute_force(seed: int, constraints: int, share: float) -> None:
    chain, codes, gain, costs = random_problem(seed, constraints)
    rng = np.random.default_rng(seed)
    budgets = np.quantile(costs, share, axis=1) * rng.uniform(0.8, 1.2, constraints)
    feasible = (costs <= budgets[:, None]).all(axis=0)
    if not feasible.any():
        with pytest.raises(Infeasible):
            optimum(chain, budgets)
        return
    found = optimum(chain, budgets)
    assert found.error == 0.0
    assert found.gain == pytest.approx(gain[feasible].max(), abs=1e-9)
    row = int(np.flatnonzero((codes == found.code).all(axis=1))[0])
    assert found.gain == pytest.approx(gain[row], abs=1e-9)
    np.testing.assert_allclose(found.costs, costs[:, row], rtol=1e-9)
    assert (found.costs <= budgets * (1 + 1e-9)).all()


def optimum_or_most(chain: Chain, budgets: Values, tolerance: float) -> Optimum | float:
    """What was found, or the most that one gains which was not found."""
    try:
        return optimum(chain, budgets, tolerance)
    except Unknown as unknown:
        return unknown.most


@some
@given(seeds, st.integers(1, 2), st.floats(0.1, 0.9))
def test_where_partial_subnets_are_left_out_the_stated_error_holds(seed: int, constraints: int, share: float) -> None:
    chain, _, gain, costs = random_problem(seed, constraints)
    budgets = np.quantile(costs, share, axis=1)
    before = passage.MOST_STATES, exact.BEAMS
    passage.MOST_STATES, exact.BEAMS = 8, (1,)
    try:
        found = optimum_or_most(chain, budgets, 0.05)
    except Infeasible:
        assert not (costs <= (1 - 0.05) * budgets[:, None]).all(axis=0).any()
        return
    finally:
        passage.MOST_STATES, exact.BEAMS = before
    if isinstance(found, float):
        feasible = (costs <= budgets[:, None]).all(axis=0)
        assert constraints > 1
        assert not feasible.any() or found >= gain[feasible].max() - 1e-9
        return
    assert 0 <= found.error <= 0.05 + 1e-12
    assert constraints > 1 or found.gap == 0
    assert (found.costs <= budgets * (1 + 1e-9)).all()
    tighter = (costs <= (1 - found.error) * budgets[:, None]).all(axis=0)
    assert not tighter.any() or found.gain + found.gap >= gain[tighter].max() - 1e-9


@some
@given(seeds, st.integers(1, 2), st.floats(0.1, 0.9))
def test_without_a_tolerance_no_partial_subnets_count_as_equal(seed: int, constraints: int, share: float) -> None:
    chain, _, gain, costs = random_problem(seed, constraints)
    budgets = np.quantile(costs, share, axis=1)
    feasible = (costs <= budgets[:, None]).all(axis=0)
    if not feasible.any():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passage, "MOST_STATES", 8)
        patch.setattr(exact, "BEAMS", (1,))
        found = optimum_or_most(chain, budgets, 0.0)
    best = gain[feasible].max()
    if isinstance(found, float):
        assert constraints > 1
        assert found >= best - 1e-9
        return
    assert found.error == 0
    assert found.gain <= best + 1e-9 <= found.gain + found.gap + 2e-9
    assert constraints > 1 or found.gap == 0


@pytest.mark.parametrize("seed", [104, 184, 194, 397, 576])
def test_an_optimum_that_uses_its_budgets_exactly_is_kept(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "BEAMS", (1, 4))
    for constraints in (2, 3):
        chain, _, gain, costs = random_problem(seed, constraints)
        budgets = costs[:, np.random.default_rng(seed).integers(costs.shape[1])]
        feasible = (costs <= budgets[:, None] * (1 + 1e-9)).all(axis=0)
        assert optimum(chain, budgets).gain == pytest.approx(gain[feasible].max(), abs=1e-9)


def test_prices_and_least_costs_are_those_of_brute_force() -> None:
    for seed in range(20):
        chain, codes, gain, costs = random_problem(seed, 2)
        prices = np.random.default_rng(seed).exponential(size=2)
        code, own_gain, own_costs = chain.best(prices)
        best = (gain - prices @ costs).max()
        assert own_gain - prices @ own_costs == pytest.approx(best, abs=1e-9)
        assert chain.rest(prices)[0][0] == pytest.approx(best, abs=1e-9)
        assert [rest[0][0] for rest in chain.least] == pytest.approx(costs.min(axis=1).tolist())
        assert (codes == code).all(axis=1).any()


def test_variables_that_all_depend_on_each_other_are_refused() -> None:
    cardinalities = [40] * 8
    tables: list[Table] = [((i, j), np.zeros((40, 40))) for i in range(8) for j in range(i)]
    with pytest.raises(
        UserError, match=r"search\.method=exact: the predictors tie too many variables together.*genetic"
    ):
        Chain(cardinalities, tables, [tables])


def test_stages_that_only_the_resolution_ties_together_are_decided_one_after_the_other() -> None:
    cardinalities = [5]
    tables: list[Table] = []
    for _ in range(6):
        depth = len(cardinalities)
        cardinalities += [6, *([2, 4] * 5)]
        for kernel in range(depth + 1, depth + 11, 2):
            tables.append(((0, depth, kernel, kernel + 1), np.zeros((5, 6, 2, 4))))
    chain = Chain(cardinalities, tables, [tables])
    assert max(len(step.gain) for step in chain.steps) == 5 * 6 * 2 * 4


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
                measured=Measured(accuracy=rng.uniform(0.5, 0.9), loss=rng.uniform(1, 2)),
                standard_error=0.01,
            )
        )
    assert len(interactions) > 2
    return latency, AccuracyPredictor(plain.table.model_copy(update={"interactions": tuple(interactions)}))


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


SIZES = {"test_resnet": (32, 32), "mobilenetv3_small_050": (64, 64), "test_vit": (160, 160)}


def walked(chain: Chain, code: np.ndarray) -> tuple[float, float]:
    """Gain and cost of a code, step by step."""
    at, gain, cost = 0, 0.0, 0.0
    for step in chain.steps:
        around = step.around[at, code[step.variable]]
        gain += step.gain[around]
        cost += step.costs[0, around]
        at = step.after[around]
    return gain, cost


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


@pytest.mark.parametrize("where", ["gain", "cost"])
def test_a_table_without_a_number_is_refused(where: str) -> None:
    tables: list[Table] = [((0,), np.array([1.0, 2.0])), ((1,), np.array([1.0, np.nan]))]
    sums = {"gain": tables[:1], "cost": tables[:1], where: tables}
    with pytest.raises(UserError, match=r"^search\.method=exact: a predictor gives no number \(NaN\).*predict stage"):
        Chain([2, 2], sums["gain"], [sums["cost"]])
