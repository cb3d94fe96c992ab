"""Candidates of a space of sizes and alternatives: the best of sizes alone and of alternatives alone are among them."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from solvers.tables import Codes
from tasks.base.progress import Silent
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sums import Sums
from tasks.search import FRONT_FILE, SearchRequest, Settings, Target, read_front, run
from tasks.search.refine.candidates import Pool

SPACE: Any = {"*.width_mult": (0.5, 1.0), "*.block": ("pruned_0.5", "low_rank_0.5")}


@pytest.mark.long
def test_the_best_without_alternatives_and_without_sizes_are_candidates(tmp_path: Path) -> None:
    """By brute force over the whole space, where alternatives are predicted to cost nothing."""
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=10).eval()
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), SPACE).save(tmp_path / "supernet")
    net = tailor_ir.load(tmp_path / "supernet")
    space = net.space
    full = net.macs(net.max_config)
    latency = LatencyPredictor(
        Sums.compile(net, {one: one.macs / full for one in net.unique_operators()}),
        Correction(),
        Sums(space.cardinalities.tolist(), ()),
    )
    is_block = np.array([variable.kind == "block" for variable in space.variables])
    measured = []
    for config in modifications(space):
        replaced = any(isinstance(choice, str) and choice != "original" for choice in config.values())
        share = 1.0 if replaced else net.macs(config) / full
        measured.append(Accuracy(round(900 * share**0.2), 1000, 2 - share))
    accuracy = AccuracyPredictor(sensitivities(space, measured))
    settings = Settings.model_validate({"method": "exact", "budget_count": 10})
    targets = [Target(name="here", latency=latency)]
    request = SearchRequest(supernet=tmp_path / "supernet", targets=targets, accuracy=accuracy, settings=settings)
    run(request, tmp_path, Silent())
    front = read_front(tmp_path / FRONT_FILE)
    pool = Pool(net, targets, accuracy, [front])
    assert any(winner.config.get(name, "original") != "original" for winner in front.winners for name in _blocks(space))

    every = np.unique(space.canonical_codes(np.array(list(product(*map(range, space.cardinalities))))), axis=0)
    candidates = space.canonical_codes(space.encode(list(pool.configs.values())))
    for unchanged in (is_block, ~is_block):
        found, known = _part(every, unchanged, space), _part(candidates, unchanged, space)
        for winner in front.winners:
            best = _best(found, latency, accuracy, winner.budget_ms)
            assert _best(known, latency, accuracy, winner.budget_ms) == pytest.approx(best, abs=1e-9)


def _blocks(space: Any) -> list[str]:
    return [variable.name for variable in space.variables if variable.kind == "block"]


def _part(codes: Codes, unchanged: Any, space: Any) -> Codes:
    part: Codes = codes[(codes == space.cardinalities - 1)[:, unchanged].all(axis=1)]
    return part


def _best(codes: Codes, latency: LatencyPredictor, accuracy: AccuracyPredictor, budget_ms: float) -> float | None:
    within = codes[latency.predict(codes) <= budget_ms]
    return float(accuracy.score(within).max()) if len(within) else None
