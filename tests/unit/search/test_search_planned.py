"""Limits of memory that are kept by order: with planned orders the search finds larger SubNets within the same limit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tailor_ir
from profiling_agents.messages import MIB
from tailor_ir.memory import Rules
from tailor_ir.memory.planned_file import plan_file
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.prediction.resources import MemoryPredictor, MemoryWithin
from tasks.search import SearchRequest, Settings, Target, run
from tests.support import examples
from tests.support.ir.branches import WideBlocks
from tests.support.ir.runtime_memory import HERE, runtime
from tests.unit.search.test_search_limits import ABOVE, all_codes, predictors

SIDE = 24
PLANNED = Rules(channel_block=HERE.channel_block, planned=True)
GENEROUS_MS = 1e6
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def net() -> Any:
    torch.manual_seed(0)
    return tailor_ir.compile(WideBlocks().eval(), torch.zeros(1, 3, SIDE, SIDE))


@pytest.fixture(scope="module")
def folder(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "supernet"
    net.save(path)
    return path


def found(net: Any, folder: Path, out: Path, rules: Rules, limit_mib: float, method: str, seed: int = 3) -> Any:
    latency, accuracy, _ = predictors(net, seed)
    asked = Settings.model_validate(
        {"method": method, "limits": {"memory_mib": limit_mib}, "budgets_ms": [GENEROUS_MS], "tolerance": 0}
        | {"population": 20, "generations": 30, "plateau": 10, "beam_width": 4}
    )
    targets = [Target(name="pi", latency=latency, rules=rules)]
    request = SearchRequest(supernet=folder, targets=targets, accuracy=accuracy, settings=asked)
    return run(request, out, Silent())["pi"]


def codes_of(net: Any) -> np.ndarray:
    return np.unique(net.space.canonical_codes(all_codes(net)), axis=0)


@pytest.mark.long
@settings(max_examples=examples(15), deadline=None)
@given(seeds, st.floats(0.0, 1.0), st.sampled_from(["exact", "genetic"]))
def test_winners_within_a_planned_limit_are_those_of_brute_force(
    net: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, share: float, method: str
) -> None:
    codes = codes_of(net)
    memory_mib = MemoryPredictor.compile(net, PLANNED).predict(codes)
    limit_mib = ABOVE * float(np.quantile(memory_mib, share))
    _, accuracy, _ = predictors(net, seed)
    best = accuracy.score(codes)[memory_mib <= limit_mib].max()
    (winner,) = found(net, folder, tmp_path_factory.mktemp("out"), PLANNED, limit_mib, method, seed)["winners"]
    (row,) = np.flatnonzero((codes == net.space.canonical_codes(net.space.encode([winner["config"]]))).all(axis=1))
    assert winner["predicted_memory_mib"] == pytest.approx(memory_mib[row], rel=1e-12)
    assert memory_mib[row] <= limit_mib
    assert winner["predicted_score"] <= best + 1e-9
    if method == "exact":
        assert winner["stopped"] == "optimal"
        assert winner["predicted_score"] == pytest.approx(best, abs=1e-9)


def test_beside_a_limit_bounds_are_on_the_side_of_the_prediction(net: Any) -> None:
    codes = codes_of(net)
    memory = MemoryPredictor.compile(net, PLANNED)
    memory_mib = memory.predict(codes)
    for limit_mib in np.quantile(memory_mib, [0, 0.1, 0.5, 0.9]).tolist():
        beside = memory.within(limit_mib)
        assert isinstance(beside, MemoryWithin)
        assert ((beside.predict(codes) <= limit_mib) == (memory_mib <= limit_mib)).all()
    default = MemoryPredictor.compile(net, HERE)
    assert default.within(1.0) is default


@pytest.mark.parametrize("method", ["exact", "genetic"])
def test_a_limit_is_kept_by_the_planned_order_with_a_larger_subnet_than_by_size(
    method: str, net: Any, folder: Path, tmp_path: Path
) -> None:
    codes = codes_of(net)
    _, accuracy, _ = predictors(net, 3)
    planned_mib, default_mib = (MemoryPredictor.compile(net, rules).predict(codes) for rules in (PLANNED, HERE))
    limit_mib = ABOVE * float(np.quantile(planned_mib, 0.8))
    winners = {}
    for name, rules in (("planned", PLANNED), ("default", HERE)):
        out = tmp_path / name
        out.mkdir()
        (winners[name],) = found(net, folder, out, rules, limit_mib, method)["winners"]
    within = accuracy.score(codes)[default_mib <= limit_mib]
    assert winners["planned"]["predicted_score"] > within.max()
    assert winners["planned"]["macs"] > winners["default"]["macs"]
    counted = counted_bytes(net, winners["planned"]["config"], tmp_path)
    assert counted["planned"] <= limit_mib * MIB < counted["default"]


def counted_bytes(net: Any, config: Any, folder: Path) -> dict[str, int]:
    """Parameters and activations of the exported file in both orders, as the runtime counts these."""
    path = folder / "subnet.onnx"
    net.export(config, path, fold_batch_norm=True)
    model = onnx.load(path)
    x = np.random.default_rng(0).standard_normal(net.input_shape(config)).astype(np.float32)
    plan = plan_file(model, {model.graph.input[0].name: x})
    peaks = {
        "default": runtime().peaks(model.SerializeToString(), x),
        "planned": runtime().peaks(plan.model.SerializeToString(), x, as_it_stands=True),
    }
    return {order: 4 * net.parameters(config) + peak.asked for order, peak in peaks.items()}


def test_a_planned_limit_below_every_subnet_is_refused_with_one_that_a_subnet_keeps(
    net: Any, folder: Path, tmp_path: Path
) -> None:
    memory_mib = MemoryPredictor.compile(net, PLANNED).predict(codes_of(net))
    least = float(memory_mib.min())
    with pytest.raises(UserError, match=r"^search\.limits\.memory_mib: .* below the least of any SubNet") as caught:
        found(net, folder, tmp_path, PLANNED, 0.9 * least, "exact")
    (allowed,) = re.findall(r"allowed: (\S+) and more", str(caught.value))
    assert least <= float(allowed) <= 1.002 * least
