"""Winners and whole fronts of the exact search are what they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.base.progress import Silent
from tasks.prediction.resources import MemoryPredictor
from tasks.prediction.sums import mac_sums, parameter_sums
from tasks.search.methods import Exact
from tasks.search.problem import Problem, chain_of, cost_tables
from tasks.search.settings import Settings
from tasks.search.stage import method_of
from tests.support import long
from tests.support.golden import predictions
from tests.support.golden.fixtures import Golden
from tests.support.golden.networks import network
from tests.support.golden.records import lettered, rounded

BUDGETS = 10
RTOL = 1e-9
"""Of sums of float64 numbers, in any order. Codes are exact: no two of these SubNets are as near to each other."""


def listed(problem: Problem, codes: np.ndarray) -> dict[str, Any]:
    """Codes and what is predicted of them."""
    scores = problem.evaluate(codes)
    predicted = {"latency_ms": rounded(scores.latency_ms), "accuracy": rounded(problem.accuracy.predict(codes))}
    return {"codes": lettered(codes), **predicted}


@pytest.mark.long
@pytest.mark.parametrize("name", ["mobilenetv2", long("resnet50"), long("hrnet_w18_small")])
def test_winners_and_whole_front_of_a_network_are_what_they_were(name: str, golden: Golden, tmp_path: Path) -> None:
    net = network(name)
    latency, accuracy = predictions.latency_predictor(net, tmp_path), predictions.accuracy_predictor(net)
    problem = Problem(net.space, latency, accuracy)
    method = Exact(problem, chain_of(net.space, accuracy, cost_tables(latency)), Settings())
    ends = np.stack([method.quickest(), method.best()])
    first_ms, last_ms = problem.evaluate(ends).latency_ms.tolist()
    budgets_ms = np.geomspace(first_ms, last_ms, BUDGETS)
    winners = [method.winner(np.array([budget_ms])) for budget_ms in budgets_ms]
    front = method.whole_front(Silent(), name)
    found = {
        "budgets_ms": rounded(budgets_ms),
        "ends": listed(problem, ends),
        "stopped": [winner.stopped for winner in winners],
        "winners": listed(problem, np.stack([winner.code for winner in winners])),
        "front_error": front.error,
        "front": listed(problem, front.codes),
    }
    golden(f"front_{name}", found, rtol=RTOL)


@pytest.mark.few("memory")
@pytest.mark.parametrize("cost", ["memory", "parameters and MACs"])
def test_winners_within_several_budgets_are_what_they_were(cost: str, golden: Golden, tmp_path: Path) -> None:
    net = network("mobilenetv2")
    latency, accuracy = predictions.latency_predictor(net, tmp_path), predictions.accuracy_predictor(net)
    others = (MemoryPredictor.compile(net),) if cost == "memory" else (parameter_sums(net), mac_sums(net))
    problem = Problem(net.space, latency, accuracy, others)
    method = method_of(problem, net.space, Settings(method="exact"))
    fastest, best = problem.evaluate(np.stack([method.quickest(), method.best()])).costs
    ladder = np.geomspace(fastest, best, 4)
    ladder[:, 1:] = np.sqrt(fastest * best)[1:]
    winners = [method.winner(budgets) for budgets in ladder]
    found = {
        "budgets": [rounded(budgets) for budgets in ladder],
        "stopped": [winner.stopped for winner in winners],
        "winners": listed(problem, np.stack([winner.code for winner in winners])),
    }
    golden(f"winners_{cost.replace(' ', '_')}", found, rtol=RTOL)
