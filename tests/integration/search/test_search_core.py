"""The search on small problems whose every SubNet can be listed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.search.feasibility import LATENCY, Cost, beam_descent, fastest
from tasks.search.genetic import around, repair, search
from tasks.search.methods import Genetic, Method
from tasks.search.nsga2 import Nsga2
from tasks.search.problem import Codes, Problem, Scores, neighbours, uniform_codes
from tasks.search.settings import Settings
from tasks.search.stage import LEAST_BUDGET, find_winners
from tests.support import examples
from tests.support.search.additive import Accuracy, BlockSpace, Latency, random_models

QUICK = Settings(population=40, generations=60, plateau=15, beam_width=8)
seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=examples(20), deadline=None)


def _problem(seed: int, stages: int = 2) -> tuple[Problem, np.random.Generator]:
    rng = np.random.default_rng(seed)
    space = BlockSpace(stages)
    latency, accuracy = random_models(space, rng)
    return Problem(space, latency, accuracy), rng


def on(device: str, problem: Problem) -> Cost:
    return Cost(LATENCY, device, problem.latency)


def _all(problem: Problem) -> tuple[Codes, Scores]:
    assert isinstance(problem.space, BlockSpace)
    codes = problem.space.all_codes()
    return codes, problem.evaluate(codes)


@some
@given(seeds, st.floats(0.0, 1.0))
def test_genetic_search_is_feasible_and_close_to_the_brute_force_optimum(seed: int, share: float) -> None:
    problem, rng = _problem(seed)
    _, scores = _all(problem)
    quickest = fastest(problem, rng)
    low, high = scores.latency_ms.min(), scores.latency_ms.max()
    budget_ms = low + share * (high - low)
    starts = beam_descent(problem, 8).codes
    winner = search(problem, budget_ms, starts, quickest, QUICK, rng)
    found = problem.evaluate(winner.code[None])
    best = scores.score[scores.latency_ms <= budget_ms].max()
    assert found.latency_ms[0] <= budget_ms
    assert best - found.score[0] <= 0.1 * (scores.score.max() - scores.score.min())


def test_genetic_search_finds_the_optimum_of_most_problems() -> None:
    exact = 0
    for seed in range(20):
        problem, rng = _problem(seed)
        _, scores = _all(problem)
        budget_ms = float(np.quantile(scores.latency_ms, 0.3))
        starts = beam_descent(problem, 8).codes
        winner = search(problem, budget_ms, starts, fastest(problem, rng), QUICK, rng)
        best = scores.score[scores.latency_ms <= budget_ms].max()
        exact += bool(problem.evaluate(winner.code[None]).score[0] >= best - 1e-9)
    assert exact >= 18


@some
@given(seeds)
def test_fastest_is_the_fastest_of_all(seed: int) -> None:
    problem, rng = _problem(seed)
    _, scores = _all(problem)
    found = problem.evaluate(fastest(problem, rng)[None]).latency_ms[0]
    assert found == pytest.approx(scores.latency_ms.min())


@some
@given(seeds, st.floats(0.0, 1.0))
def test_repair_makes_every_row_feasible_and_canonical(seed: int, share: float) -> None:
    problem, rng = _problem(seed, stages=3)
    quickest = fastest(problem, rng)
    low = problem.evaluate(quickest[None]).latency_ms[0]
    high = problem.evaluate(problem.largest[None]).latency_ms[0]
    budget_ms = low + share * max(high - low, 0)
    codes = problem.space.random_codes(50, rng)
    repaired = repair(problem, codes, budget_ms, quickest, rng)
    assert (problem.evaluate(repaired).latency_ms <= budget_ms).all()
    assert (problem.space.canonical_codes(repaired) == repaired).all()
    fits = problem.evaluate(codes).latency_ms <= budget_ms
    assert (repaired[fits] == codes[fits]).all()


def test_beam_descent_starts_at_the_largest_and_reaches_fast_subnets() -> None:
    problem, rng = _problem(3, stages=3)
    archive = beam_descent(problem, 4)
    assert (archive.codes[0] == problem.largest).all()
    assert len(archive.codes) == len(np.unique(archive.codes, axis=0))
    quickest_ms = problem.evaluate(fastest(problem, rng)[None]).latency_ms[0]
    assert archive.scores.latency_ms.min() <= 1.05 * quickest_ms
    assert np.max(np.diff(np.sort(archive.scores.latency_ms))) < 0.2 * np.ptp(archive.scores.latency_ms)


def test_neighbours_are_all_single_modifications_largest_choice_first() -> None:
    space = BlockSpace(1)
    code = np.array([[3, 2, 1, 0]])
    around = neighbours(space, code)
    assert len(around.codes) == np.sum(space.cardinalities - 1)
    assert ((around.codes != code).sum(axis=1) >= 1).all()
    lower = neighbours(space, code, lower_only=True)
    assert lower.variable.tolist() == [0, 0, 0, 1, 1, 2]
    assert lower.codes.tolist() == [
        [2, 2, 1, 0], [1, 2, 1, 0], [0, 2, 1, 0], [3, 1, 1, 2], [3, 0, 2, 2], [3, 2, 0, 0]
    ]  # fmt: skip


def test_memo_asks_the_predictors_once_per_subnet() -> None:
    problem, rng = _problem(0)
    assert isinstance(problem.latency, Latency)
    codes = problem.space.random_codes(200, rng)
    first = problem.evaluate(codes)
    again = problem.evaluate(codes[::-1])
    distinct = len(np.unique(codes, axis=0))
    assert problem.latency.rows == problem.evaluations == distinct
    assert (again.latency_ms[::-1] == first.latency_ms).all()
    assert first.latency_ms == pytest.approx(problem.latency.predict(codes))


def test_equal_seeds_give_equal_winners_and_more_budget_is_never_worse() -> None:
    runs = []
    for _ in range(2):
        problem, _ = _problem(11, stages=3)
        method = Genetic(problem, QUICK, np.random.default_rng(5))
        budgets_ms, winners = find_winners(problem, method, QUICK, Silent(), [on("d", problem)])
        runs.append((budgets_ms, [w.code.tolist() for w in winners]))
        scores = problem.evaluate(np.stack([w.code for w in winners]))
        assert (scores.costs <= budgets_ms).all()
        assert (np.diff(scores.score) >= 0).all()
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == QUICK.budget_count


def test_plateau_stop_says_so_and_generation_limit_too() -> None:
    problem, rng = _problem(2)
    starts, quickest = beam_descent(problem, 4).codes, fastest(problem, rng)
    high = float(problem.evaluate(problem.largest[None]).latency_ms[0])
    patient = QUICK.model_copy(update={"generations": 300})
    stalled = search(problem, high, starts, quickest, patient, rng)
    assert stalled.stopped == "plateau: no improvement in 15 generations in each of 2 populations"
    once = search(problem, high, starts, quickest, patient.model_copy(update={"populations": 1}), rng)
    assert once.stopped == "plateau: no improvement in 15 generations"
    assert once.generations < stalled.generations
    short = QUICK.model_copy(update={"generations": 3})
    cut = search(problem, high, starts, quickest, short, rng)
    assert (cut.stopped, cut.generations) == ("all generations used", 3)


@some
@given(seeds, st.floats(0.05, 1.0))
def test_subnets_built_around_one_are_different_and_keep_the_budget(seed: int, share: float) -> None:
    problem, rng = _problem(seed)
    _, scores = _all(problem)
    budget_ms = np.quantile(scores.latency_ms, share, keepdims=True)
    fits = problem.space.random_codes(200, rng)
    fits = fits[problem.evaluate(fits).within(budget_ms)]
    if len(fits):
        start = fits[np.argmax(problem.evaluate(fits).score)]
        found = around(problem, start, budget_ms, most=40)
        assert problem.evaluate(found).within(budget_ms).all()
        assert (problem.space.canonical_codes(found) == found).all()
        assert len(found) == len(np.unique(found, axis=0)) > 0


def test_a_plateau_is_left_by_what_is_built_around_the_best() -> None:
    gaps = {0: 0.0, 40: 0.0}
    for seed in range(8):
        for most in gaps:
            problem, rng = _problem(seed)
            _, scores = _all(problem)
            budget_ms = float(np.quantile(scores.latency_ms, 0.3))
            greedy = QUICK.model_copy(
                update={"population": 8, "plateau": 3, "rebalance": most, "beam_width": 0, "populations": 1}
            )
            start = problem.space.canonical_codes(problem.largest[None])
            found = search(problem, budget_ms, start, fastest(problem, rng), greedy, rng)
            best = scores.score[scores.latency_ms <= budget_ms].max()
            gaps[most] += best - problem.evaluate(found.code[None]).score[0]
    assert gaps[40] < 0.5 * gaps[0]


@dataclass
class Undefined:
    """No number for SubNets with the last variable at its smallest choice."""

    def predict(self, codes: Codes) -> NDArray[np.float64]:
        return np.where(codes[:, -1] == 0, np.nan, 1.0 + codes.sum(axis=1))


@pytest.mark.parametrize("method", [Genetic, lambda problem, settings, rng: Nsga2(problem, settings)])
def test_a_predictor_that_gives_no_number_is_named(method: Callable[..., Method]) -> None:
    problem, rng = _problem(0)
    problem = Problem(problem.space, Undefined(), problem.accuracy)
    with pytest.raises(UserError, match=r"^predictor Undefined: gives no number \(NaN\) for \d+ of \d+ SubNets; "):
        find_winners(problem, method(problem, QUICK, rng), QUICK, Silent(), [on("pi", problem)])


def test_budget_below_the_fastest_subnet_is_refused_before_searching_with_the_fastest() -> None:
    problem, rng = _problem(4)
    quickest_ms = problem.evaluate(fastest(problem, rng)[None]).latency_ms[0]
    asked = QUICK.model_copy(update={"budgets_ms": (quickest_ms * 0.9, quickest_ms * 3)})
    line = rf"search\.budgets_ms: .*fastest SubNet, predicted {quickest_ms:.4g} ms on 'pi'"
    with pytest.raises(UserError, match=line):
        find_winners(problem, Genetic(problem, asked, rng), asked, Silent(), [on("pi", problem)])


@pytest.mark.parametrize(
    "bad", [{"budgets_ms": [-1]}, {"budgets_ms": [0]}, {"budgets_ms": []}, {"budgets_ms": ["fast"]},
            {"budget_count": 1}, {"mutation_probability": 0}, {"unknown": 1}]
)  # fmt: skip
def test_bad_settings_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate(bad)


def test_automatic_budgets_end_at_the_best_subnet_and_at_the_largest_where_small_ones_are_best() -> None:
    problem, rng = _problem(6)
    method = Genetic(problem, QUICK, rng)
    budgets_ms, _ = find_winners(problem, method, QUICK, Silent(), [on("d", problem)])
    codes, scores = _all(problem)
    largest_ms = scores.latency_ms[(codes == problem.largest).all(axis=1)][0]
    within = scores.latency_ms <= largest_ms
    best_ms = scores.latency_ms[within][np.argmax(scores.score[within])]
    fastest_ms = problem.evaluate(method.quickest()[None]).latency_ms[0]
    assert budgets_ms[0][0] == pytest.approx(LEAST_BUDGET * fastest_ms, rel=2e-3)
    assert budgets_ms[-1][0] == pytest.approx(best_ms, rel=2e-3)
    assert isinstance(problem.accuracy, Accuracy)
    problem.accuracy.values = [-value for value in problem.accuracy.values]
    upside_down = Problem(problem.space, problem.latency, problem.accuracy)
    budgets_ms, _ = find_winners(upside_down, Genetic(upside_down, QUICK, rng), QUICK, Silent(), [on("d", problem)])
    assert len(budgets_ms) == QUICK.budget_count
    assert budgets_ms[-1][0] == pytest.approx(largest_ms, rel=2e-3)


class SameLatency:
    """Two milliseconds for every SubNet."""

    def predict(self, codes: Codes) -> NDArray[np.float64]:
        return np.full(len(codes), 2.0)


def test_subnets_that_are_all_as_fast_have_one_automatic_budget() -> None:
    problem, rng = _problem(6)
    same = Problem(problem.space, SameLatency(), problem.accuracy)
    budgets_ms, winners = find_winners(same, Genetic(same, QUICK, rng), QUICK, Silent(), [on("d", same)])
    assert budgets_ms == [(pytest.approx(2 * LEAST_BUDGET),)]
    _, scores = _all(same)
    assert same.evaluate(winners[0].code[None]).score[0] == pytest.approx(scores.score.max())


def test_uniform_baseline_scales_only_the_asked_variables() -> None:
    space = BlockSpace(1, resolutions=5)
    everything = uniform_codes(space, np.array([True] * 4))
    assert everything[0].tolist() == [4, 2, 2, 2]
    assert everything[-1].tolist() == [0, 0, 2, 2]
    assert len(everything) == 5
    without = uniform_codes(space, np.array([False, True, True, True]))
    assert without.tolist() == [[4, 2, 2, 2], [4, 1, 1, 2], [4, 0, 2, 2]]


@dataclass
class Total:
    """Of all choices of a canonical code: `first` + `each` of them."""

    first: float
    each: float

    def predict(self, codes: Codes) -> NDArray[np.float64]:
        return self.first + self.each * codes.sum(axis=1)


def test_limits_that_contradict_each_other_are_refused_with_the_nearest_that_do_not() -> None:
    space, rng = BlockSpace(2), np.random.default_rng(0)
    costs = [Cost("parameters", "pi", Total(1, 1), 7.0), Cost("macs", "pi", Total(30, -1), 20.0)]
    latency, accuracy = random_models(space, rng)
    problem = Problem(space, latency, accuracy, tuple(cost.model for cost in costs))
    values = problem.evaluate(space.all_codes()).costs[:, 1:]
    assert (values.min(axis=0) < [7, 20]).all()
    parameters, macs = values[values[:, 1] <= 20, 0].min(), values[values[:, 0] <= 7, 1].min()
    method = Genetic(problem, QUICK, rng, np.array([np.inf, 7, 20]))
    line = (
        r"^search\.limits: no SubNet keeps parameters=7 and macs=20 at once; "
        rf"allowed: parameters={parameters:g} or macs={macs:g}, with the others as they are; raise"
    )
    with pytest.raises(UserError, match=line):
        find_winners(problem, method, QUICK, Silent(), [on("pi", problem), *costs])


@some
@given(seeds, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_genetic_search_keeps_every_limit(seed: int, share: float, other: float) -> None:
    rng = np.random.default_rng(seed)
    space = BlockSpace(2)
    latency, accuracy = random_models(space, rng)
    problem = Problem(space, latency, accuracy, (random_models(space, rng)[0], Total(1, 1)))
    _, scores = _all(problem)
    low, high = scores.costs.min(axis=0), scores.costs.max(axis=0)
    limits = low + np.array([1.0, share, other]) * (high - low)
    budgets = np.array([low[0] + share * (high[0] - low[0]), *limits[1:]])
    method = Genetic(problem, QUICK, rng, np.array([np.inf, *limits[1:]]))
    quickest = problem.evaluate(method.quickest(budgets)[None])
    if quickest.within(budgets)[0]:
        found = problem.evaluate(method.winner(budgets).code[None])
        assert found.within(budgets)[0]
        assert quickest.score[0] <= found.score[0] <= scores.score[scores.within(budgets)].max()
