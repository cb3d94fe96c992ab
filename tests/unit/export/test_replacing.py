"""SubNets in the place of winners that miss their budgets as measured."""

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailor_ir
from profiling_agents.messages import Measurement
from tasks import search
from tasks.base.progress import Silent
from tasks.base.schemas.winners import Candidate, Candidates, Front, Winner
from tasks.evaluation.subnets import Accuracy
from tasks.export import MeasuredSubstitutes, SearchedSubstitutes
from tasks.export.replacing import MARGIN, replaced
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sums import Sums, mac_sums
from tests.support.fronts import predicted

SLOWER = 1.05
"""What SubNets take, over what is predicted."""


def taking(ms: float) -> Measurement:
    return Measurement(key="subnet", state="ok", p50_ms=ms, p90_ms=ms, spread=0.0, n=1, repeats=1)


@pytest.fixture(scope="module")
def searched(supernet: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SearchedSubstitutes, Any, Front]:
    """The search for a budget below what its fastest SubNet takes, and for two above; with the space's predictors."""
    net = tailor_ir.load(supernet)
    latency = LatencyPredictor(mac_sums(net), Correction(), Sums(net.space.cardinalities.tolist(), ()))
    shares = [net.macs(config) / net.macs(net.max_config) for config in modifications(net.space)]
    table = sensitivities(net.space, [Accuracy(round(900 * share**0.1), 1000, 2 - share) for share in shares])
    accuracy = AccuracyPredictor(table)
    ends = net.space.canonical_codes(net.space.encode([net.min_config, net.max_config]))
    fastest, slowest = latency.predict(ends).tolist()
    asked = {"method": "exact", "budgets_ms": [1.01 * fastest, 0.99 * slowest, 2 * slowest]}
    target, out = search.Target(name="here", latency=latency), tmp_path_factory.mktemp("search")
    settings = search.Settings.model_validate(asked)
    request = search.SearchRequest(supernet=supernet, targets=[target], accuracy=accuracy, settings=settings)
    search.run(request, out, Silent())
    front = Front.read(out / search.FRONT_FILE)
    return SearchedSubstitutes(supernet, target, accuracy, front), (latency, accuracy), front


def test_a_winner_that_misses_gives_way_to_the_best_that_keeps_the_budget(
    supernet: Path, searched: tuple[SearchedSubstitutes, Any, Front]
) -> None:
    substitutes, (latency, accuracy), front = searched
    space = tailor_ir.load(supernet).space

    def measure(configs: Mapping[str, Any]) -> dict[str, Measurement]:
        codes = space.canonical_codes(space.encode(list(configs.values())))
        return {digest: taking(SLOWER * ms) for digest, ms in zip(configs, latency.predict(codes), strict=True)}

    codes = np.unique(space.canonical_codes(np.array(list(product(*map(range, space.cardinalities))))), axis=0)
    rows, measured = replaced(front.winners, lambda: substitutes, 2, measure)
    before, after = front.winners, rows
    assert after[0] == before[0], "no SubNet keeps this budget"
    assert after[2] == before[2], "kept"
    missed, found = before[1], after[1]
    missed_ms, found_ms = measured[missed.digest].p50_ms, measured[found.digest].p50_ms
    assert missed_ms is not None
    assert found_ms is not None
    assert missed_ms > missed.budget_ms == found.budget_ms
    assert found_ms <= found.budget_ms
    fits = codes[latency.predict(codes) * missed_ms / missed.predicted_ms <= 0.99 * found.budget_ms]
    assert found.predicted_score == pytest.approx(accuracy.score(fits).max(), abs=1e-3)
    assert replaced(front.winners, lambda: substitutes, 0, measure)[0] == list(before)
    assert replaced(front.winners, None, 2, measure)[0] == list(before)
    kept = replaced(front.winners, lambda: substitutes, 2, measure, [missed.digest])[0]
    assert kept == list(before), "a winner that has adapted stays"


def test_a_refined_winner_gives_way_to_the_most_accurate_candidate(supernet: Path) -> None:
    net = tailor_ir.load(supernet)
    codes = np.unique(net.space.canonical_codes(net.space.random_codes(50, np.random.default_rng(0))), axis=0)[:5]
    rows = [predicted(net, net.space.decode(code)) for code in codes]
    known = [(10.0, 10.0, 0.9), (9.5, 9.5, 0.8), (8.0, 8.6, 0.7), (8.0, 8.0, 0.6), (5.0, 5.0, None)]
    candidates = [
        Candidate(**row.to_json(), smoothed_ms=smoothed_ms, latency=taking(ms), accuracy=accuracy, loss=1.0)
        for row, (ms, smoothed_ms, accuracy) in zip(rows, known, strict=True)
    ]
    substitutes = MeasuredSubstitutes(Candidates(candidates=tuple(candidates), budgets=(), likely={}))
    winner = Winner(budget_ms=10.0, **rows[0].to_json())

    def another(own_ms: float) -> str | None:
        found = substitutes.another([winner], {winner.digest: own_ms})
        return found.digest if found else None

    assert another(10.1) == rows[1].digest
    assert another(11.5) == rows[2].digest, f"8.6 ms, over 1.15 and with a margin of {MARGIN:.0%}"
    assert another(12.0) == rows[3].digest
    assert another(20.0) is None
    found = substitutes.another([winner], {winner.digest: 10.1})
    assert found is not None
    assert (found.measured_accuracy, found.budget_ms) == (0.8, 10.0)
