"""NSGA-II: one run whose front is near the one that brute force finds, for several devices and limits, too."""

import numpy as np
import pytest
from numpy.typing import NDArray

from solvers.front import hypervolume
from tasks.base.progress import Silent
from tasks.search.feasibility import LATENCY, Cost
from tasks.search.nsga2 import EvolvedFront, Nsga2
from tasks.search.problem import Codes, Problem, Scores, Values
from tasks.search.settings import Settings
from tasks.search.stage import find_winners
from tests.support.search.additive import BlockSpace, Latency, random_models

SETTINGS = Settings(method="nsga2", population=60, generations=80, plateau=20, beam_width=8)


class Slower:
    """No sum: the slower of two halves that run at the same time."""

    def __init__(self, first: Latency, second: Latency) -> None:
        self.first, self.second = first, second

    def predict(self, codes: Codes) -> NDArray[np.float64]:
        return np.maximum(self.first.predict(codes), self.second.predict(codes))


def problem_of(seed: int, others: int = 0, timed: int = 1) -> Problem:
    rng = np.random.default_rng(seed)
    space = BlockSpace(3)
    first, accuracy = random_models(space, rng)
    latency = Slower(first, random_models(space, rng)[0])
    return Problem(space, latency, accuracy, tuple(random_models(space, rng)[0] for _ in range(others)), timed)


def every(problem: Problem) -> Scores:
    assert isinstance(problem.space, BlockSpace)
    codes = problem.space.all_codes()
    return Problem(problem.space, problem.latency, problem.accuracy, problem.others, problem.timed).evaluate(codes)


def area(latency_ms: Values, score: Values, scores: Scores) -> float:
    corner = {"reference_cost": float(scores.latency_ms.max()), "reference_gain": float(scores.score.min())}
    return hypervolume(latency_ms, score, **corner)


@pytest.mark.few("0-8", "0-0", "2-0")
@pytest.mark.parametrize("beam_width", [8, 0])
@pytest.mark.parametrize("seed", range(3))
def test_front_of_one_run_is_near_the_one_of_all_subnets(seed: int, beam_width: int) -> None:
    problem = problem_of(seed)
    scores = every(problem)
    settings = SETTINGS.model_copy(update={"beam_width": beam_width, "budget_count": 20})
    method = Nsga2(problem, settings)
    budgets, winners = find_winners(problem, method, settings, Silent(), [Cost(LATENCY, "pi", problem.latency)])
    found = problem.evaluate(np.stack([winner.code for winner in winners]))
    budgets_ms = np.array(budgets)[:, 0]
    best = np.array([scores.score[scores.latency_ms <= budget_ms].max() for budget_ms in budgets_ms])
    assert (found.latency_ms <= budgets_ms).all()
    assert area(budgets_ms, found.score, scores) >= 0.98 * area(budgets_ms, best, scores)
    assert (np.diff(found.score) >= 0).all()
    assert len({(winner.generations, winner.stopped) for winner in winners}) == 1
    evaluations = problem.evaluations
    method.winner(np.array([budgets_ms[5]]))
    assert problem.evaluations == evaluations


def test_winners_keep_limits_and_the_budgets_of_several_devices() -> None:
    problem = problem_of(3, others=2, timed=2)
    scores = every(problem)
    limit = float(np.quantile(scores.costs[:, 2], 0.4))
    budgets = np.array([*np.quantile(scores.costs[:, :2], 0.5, axis=0), limit])
    method = Nsga2(problem, SETTINGS, np.array([np.inf, np.inf, limit]))
    found = problem.evaluate(method.winner(budgets).code[None])
    best = scores.score[scores.within(budgets)].max()
    assert found.within(budgets)[0]
    assert best - found.score[0] <= 0.1 * np.ptp(scores.score)
    assert problem.evaluate(method.best()[None]).costs[0, 2] <= limit


def test_starts_beyond_the_limits_that_dominate_those_within_are_left_out() -> None:
    problem = problem_of(3, others=1)
    scores = every(problem)
    assert isinstance(problem.space, BlockSpace)
    codes = problem.space.all_codes()
    limit = float(np.quantile(scores.costs[:, 1], 0.3))
    within = np.flatnonzero(scores.costs[:, 1] <= limit)
    slowest = within[np.argmax(scores.latency_ms[within])]
    better = np.flatnonzero((scores.latency_ms < scores.latency_ms[slowest]) & (scores.score > scores.score[slowest]))
    better = better[scores.costs[better, 1] > limit]
    assert len(better)
    starts = codes[[*better.tolist(), slowest]]
    front = EvolvedFront(problem, starts, np.array([np.inf, limit]), SETTINGS)
    assert codes[slowest].tolist() in front.codes.tolist()
    assert front.scores.within(np.array([np.inf, limit])).any()


@pytest.mark.long
def test_equal_seeds_give_equal_fronts_and_a_run_says_why_it_ended() -> None:
    runs = []
    for generations in (80, 80, 3):
        settings = SETTINGS.model_copy(update={"generations": generations})
        problem = problem_of(1)
        budget_ms = float(np.quantile(every(problem).latency_ms, 0.4))
        runs.append(Nsga2(problem, settings).winner(np.array([budget_ms])))
    assert (runs[0].code == runs[1].code).all()
    assert runs[0].generations == runs[1].generations
    assert runs[0].stopped in ("plateau: the front grew by less than 0.1% in 20 generations", "all generations used")
    assert (runs[2].stopped, runs[2].generations) == ("all generations used", 3)


def test_a_space_smaller_than_the_population_is_met_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    space = BlockSpace(1)
    latency, accuracy = random_models(space, rng)
    problem = Problem(space, latency, accuracy)
    scores = every(problem)
    winner = Nsga2(problem, SETTINGS.model_copy(update={"population": 100})).winner(np.array([np.inf]))
    assert problem.evaluate(winner.code[None]).score[0] == scores.score.max()
    assert winner.stopped == "no further SubNets"
