"""Search within several limits at once: of energy, memory, parameters and MACs, besides the latency."""

import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solvers import exact
from tailor_ir.memory import ONNXRUNTIME, Rules
from tailor_ir.memory.terms import moments
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.evaluation.subnets import Accuracy
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.resources import Calibration, EnergyPredictor, EnergySettings, MemoryPredictor
from tasks.prediction.sums import Sums, mac_sums, parameter_sums
from tasks.search import SearchRequest, Settings, Target, run
from tasks.search.problem import CostModel, Problem
from tasks.search.stage import method_of
from tests.support import examples
from tests.support.ir.elastic_networks import NETWORKS, compiled

seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=examples(25), deadline=None)
SMALL = ("convolution and BatchNorm", "depthwise convolution, centre of the kernel", "standardised weights")
RULES = (ONNXRUNTIME, *(Rules(channel_block=block, same_shape=False) for block in (1, 16)))
NAMES = ("energy_mj", "memory_mib", "parameters", "macs")
ABOVE = 1 + 1e-9
"""Factor of budgets and limits that are needs of SubNets, so that rounding leaves these SubNets within them."""


@cache
def network(name: str) -> Any:
    return compiled(name)


@cache
def supernet(name: str, folder: Path) -> Path:
    network(name).save(folder / name)
    return folder / name


def all_codes(net: Any, most: int = 4000) -> np.ndarray:
    """Every SubNet of a small space."""
    assert net.space.codes <= most
    return np.array(list(product(*map(range, net.space.cardinalities.tolist()))))


def predictors(net: Any, seed: int) -> tuple[LatencyPredictor, AccuracyPredictor, EnergyPredictor]:
    """Random latencies; accuracies that fall with the MACs a modification saves; a cache for the weights of some SubNets."""
    rng = np.random.default_rng(seed)
    latencies = {feature: float(rng.exponential()) for feature in net.unique_operators()}
    none = Sums(net.space.cardinalities.tolist(), ())
    latency = LatencyPredictor(Sums.compile(net, latencies), Correction(offset_ms=0.5), none)
    shares = [net.macs(config) / net.macs(net.max_config) for config in modifications(net.space)]
    measured = [Accuracy(int(900 * s**0.1 + rng.integers(20)), 1000, 2 - s + rng.uniform(0, 0.1)) for s in shares]
    sizes = [4 * net.parameters(config) for config in (net.min_config, net.max_config)]
    cache_bytes = int(rng.integers(sizes[0], sizes[1] + 2))
    energy = EnergyPredictor.compile(net, EnergySettings(register_bytes=64, cache_bytes=(128, cache_bytes)))
    if rng.random() < 0.5:
        calibration = Calibration(offset_mj=0.1, factor=20.0, mj_per_ms=0.05, subnets=6, spread=None)
        energy = EnergyPredictor(energy.settings, energy.operators, energy.weights, (calibration, latency))
    return latency, AccuracyPredictor(sensitivities(net.space, measured)), energy


def models(net: Any, energy: EnergyPredictor, rules: Rules) -> dict[str, CostModel]:
    found = (energy, MemoryPredictor.compile(net, rules), parameter_sums(net), mac_sums(net))
    return dict(zip(NAMES, found, strict=True))


@pytest.mark.few(3)
@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_moment_is_above_the_peak_of_memory_and_without_reuse_one_is_equal(name: str, rules: Rules) -> None:
    net = network(name)
    memory = MemoryPredictor.compile(net, rules)
    cardinalities = net.space.cardinalities.tolist()
    codes = np.random.default_rng(0).integers(0, cardinalities, size=(200, len(cardinalities)))
    rows = [
        sum((values[tuple(codes[:, list(columns)].T)] for columns, values in tables), np.zeros(len(codes)))
        for tables in moments(memory.activations.terms, cardinalities)
    ]
    peaks = memory.peak_bytes(codes)
    highest = np.max(rows, axis=0)
    assert (highest <= peaks).all()
    assert (highest > 0.25 * peaks).all()
    if rules.channel_block == 1:
        assert (highest == peaks).all()


@pytest.mark.long
@some
@given(seeds, st.sampled_from(SMALL), st.sets(st.sampled_from(NAMES), min_size=1), st.floats(0.05, 0.9))
def test_winners_within_limits_are_those_of_brute_force(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str, limited: set[str], share: float
) -> None:
    net = network(name)
    folder = supernet(name, tmp_path_factory.getbasetemp())
    latency, accuracy, energy = predictors(net, seed)
    rng = np.random.default_rng(seed)
    rules = ONNXRUNTIME if rng.random() < 0.5 else Rules(same_shape=False)
    codes = np.unique(net.space.canonical_codes(all_codes(net)), axis=0)
    costs = {one: model.predict(codes) for one, model in models(net, energy, rules).items() if one in limited}
    limits = {one: ABOVE * float(np.quantile(values, share * rng.uniform(0.5, 1))) for one, values in costs.items()}
    latency_ms, score = latency.predict(codes), accuracy.score(codes)
    within = np.all([costs[one] <= limits[one] for one in limited], axis=0)
    budget_ms = ABOVE * float(np.quantile(latency_ms, rng.uniform(0.1, 0.9)))
    feasible = within & (latency_ms <= budget_ms)

    def found(method: str) -> Any:
        asked = Settings.model_validate(
            {"method": method, "limits": limits, "budgets_ms": [budget_ms], "population": 20, "generations": 30}
            | {"plateau": 10, "beam_width": 4, "tolerance": 0}
        )
        targets = [Target(name="pi", latency=latency, energy=energy, rules=rules)]
        request = SearchRequest(supernet=folder, targets=targets, accuracy=accuracy, settings=asked)
        return run(request, tmp_path_factory.mktemp("found"), Silent())["pi"]

    if not feasible.any():
        for method in ("exact", "genetic"):
            where = r"search\.budgets_ms" if within.any() else r"search\.limits"
            with pytest.raises(UserError, match=rf"^{where}"):
                found(method)
        return
    for method in ("exact", "genetic"):
        (winner,) = found(method)["winners"]
        code = net.space.encode([winner["config"]])
        assert latency.predict(code)[0] <= budget_ms * (1 + 1e-9)
        for one, model in models(net, energy, rules).items():
            assert one not in limits or model.predict(code)[0] <= limits[one] * (1 + 1e-9)
        best = score[feasible].max()
        if method == "exact":
            assert winner["stopped"] == "optimal"
            assert winner["predicted_score"] == pytest.approx(best, abs=1e-9)
        else:
            assert winner["predicted_score"] <= best + 1e-9


@some
@given(seeds, st.floats(0.05, 0.9))
def test_an_exact_search_that_cannot_go_through_everything_finds_one_and_says_how_far_the_optimum_may_be(
    seed: int, share: float
) -> None:
    net = network(SMALL[0])
    latency, accuracy, _ = predictors(net, seed)
    problem = Problem(net.space, latency, accuracy, (parameter_sums(net), mac_sums(net)))
    scores = problem.evaluate(np.unique(net.space.canonical_codes(all_codes(net)), axis=0))
    budgets = np.quantile(scores.costs, share, axis=0) * np.random.default_rng(seed).uniform(0.9, 1.1, 3)
    if not scores.within(budgets).any():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MOST_PARTIAL", 4)
        patch.setattr(exact, "BEAMS", (1,))
        method = method_of(problem, net.space, Settings(method="exact", tolerance=0.05), budgets)
        method.quickest(budgets)
        winner = method.winner(budgets)
    found = problem.evaluate(winner.code[None])
    assert found.within(budgets * (1 + 1e-9))[0]
    told = re.fullmatch(
        r"(?:optimal|within (\S+) points of the optimum)(?: within (\S+)% of the budget)?", winner.stopped
    )
    assert told is not None
    points, percent = (float(number or 0) for number in told.groups())
    tighter = scores.within(budgets * (1 - 1.01 * percent / 100))
    assert not tighter.any() or found.score[0] + 1.05 * points / 100 >= scores.score[tighter].max() - 1e-9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return supernet(SMALL[0], tmp_path_factory.getbasetemp())


def limited(
    folder: Path, out: Path, method: str, limits: dict[str, float], budgets_ms: list[float] | None = None
) -> Any:
    latency, accuracy, energy = predictors(network(SMALL[0]), 3)
    target = Target(name="pi", latency=latency, energy=energy)
    asked = Settings.model_validate({"method": method, "limits": limits, "budgets_ms": budgets_ms})
    request = SearchRequest(supernet=folder, targets=[target], accuracy=accuracy, settings=asked)
    return run(request, out, Silent())["pi"]


@pytest.mark.parametrize("method", ["exact", "genetic"])
@pytest.mark.parametrize("name", NAMES)
def test_a_limit_below_every_subnet_is_refused_with_the_least_that_one_needs(
    name: str, method: str, folder: Path, tmp_path: Path
) -> None:
    net = network(SMALL[0])
    least = models(net, predictors(net, 3)[2], ONNXRUNTIME)[name].predict(all_codes(net)).min()
    with pytest.raises(UserError, match=rf"^search\.limits\.{name}: .* below the least of any SubNet") as caught:
        limited(folder, tmp_path, method, {name: least / 2})
    line = str(caught.value)
    assert f"predicted {least:.4g} on 'pi'" in line
    allowed = float(line.split("allowed: ")[1].split(" ")[0])
    assert least <= allowed <= 1.002 * least
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["exact", "genetic"])
def test_a_budget_that_a_limit_rules_out_is_refused_with_the_fastest_within_the_limit(
    method: str, folder: Path, tmp_path: Path
) -> None:
    net = network(SMALL[0])
    latency, _, energy = predictors(net, 3)
    codes = all_codes(net)
    costs = {"energy_mj": energy.predict(codes), "budgets_ms": latency.predict(codes)}
    budget_ms = float(costs["budgets_ms"].min() * 1.01)
    near_mj = costs["energy_mj"][costs["budgets_ms"] <= budget_ms].min()
    assert near_mj > 1.01 * costs["energy_mj"].min()
    limit_mj = float(costs["energy_mj"].min() * 1.001)
    with pytest.raises(
        UserError, match=r"search\.budgets_ms: .* below the fastest SubNet within search\.limits"
    ) as caught:
        limited(folder, tmp_path, method, {"energy_mj": limit_mj}, [budget_ms])
    fastest_ms = costs["budgets_ms"][costs["energy_mj"] <= limit_mj].min()
    assert f"predicted {fastest_ms:.4g} ms on 'pi'" in str(caught.value)


def test_winners_say_what_they_need_of_what_is_limited(folder: Path, tmp_path: Path) -> None:
    net = network(SMALL[0])
    energy = predictors(net, 3)[2]
    both = models(net, energy, ONNXRUNTIME)
    most = {name: float(np.median(both[name].predict(all_codes(net)))) for name in ("energy_mj", "memory_mib")}
    found = limited(folder, tmp_path, "exact", most)
    assert len(found["winners"]) >= 10
    for row in found["winners"]:
        code = net.space.encode([row["config"]])
        for name, limit in most.items():
            assert row[f"predicted_{name}"] == pytest.approx(both[name].predict(code)[0])
            assert row[f"predicted_{name}"] <= limit
    free = limited(folder, tmp_path, "exact", {})
    assert free["winners"][-1]["predicted_score"] > found["winners"][-1]["predicted_score"]
    assert "predicted_energy_mj" not in free["winners"][0]


def on_two_devices(net: Any, seed: int) -> tuple[list[Target], AccuracyPredictor]:
    first, accuracy, energy = predictors(net, seed)
    second, _, _ = predictors(net, seed + 1)
    targets = [Target(name="a", latency=first, energy=energy), Target(name="b", latency=second, energy=energy)]
    return targets, accuracy


@some
@given(seeds, st.sampled_from(SMALL), st.floats(0.05, 0.9), st.sampled_from(["exact", "genetic"]))
def test_together_a_winner_meets_the_budgets_of_all_devices_and_none_is_better(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str, share: float, method: str
) -> None:
    net = network(name)
    targets, accuracy = on_two_devices(net, seed)
    rng = np.random.default_rng(seed)
    codes = np.unique(net.space.canonical_codes(all_codes(net)), axis=0)
    latency_ms = np.stack([target.latency.predict(codes) for target in targets])
    # a little more than a quantile, which may be a SubNet's own latency but for rounding
    budgets = [(1 + 1e-9) * float(np.quantile(row, share * rng.uniform(0.5, 1))) for row in latency_ms]
    feasible = (latency_ms <= np.array(budgets)[:, None]).all(axis=0)
    asked = Settings.model_validate(
        {"method": method, "together": True, "tolerance": 0, "population": 20, "generations": 20, "beam_width": 4}
        | {"device_budgets_ms": {"a": [budgets[0]], "b": [budgets[1]]}}
    )
    folder, out = supernet(name, tmp_path_factory.getbasetemp()), tmp_path_factory.mktemp("found")
    request = SearchRequest(supernet=folder, targets=targets, accuracy=accuracy, settings=asked)
    if not feasible.any():
        with pytest.raises(UserError, match=r"^search\.budgets_ms: .* ms on 'a' and .* ms on 'b' at once"):
            run(request, out, Silent())
        return
    found = run(request, out, Silent())
    (first,), (second,) = (found[device]["winners"] for device in "ab")
    assert first["digest"] == second["digest"]
    assert first["budgets_ms"] == second["budgets_ms"] == {"a": budgets[0], "b": budgets[1]}
    for row, target, budget_ms in zip((first, second), targets, budgets, strict=True):
        assert row["budget_ms"] == budget_ms
        assert row["predicted_ms"] == target.latency.predict(net.space.encode([row["config"]]))[0]
        assert row["predicted_ms"] <= budget_ms * (1 + 1e-9)
    best = accuracy.score(codes)[feasible].max()
    assert first["predicted_score"] <= best + 1e-9
    assert method == "genetic" or first["predicted_score"] == pytest.approx(best, abs=1e-9)


@pytest.mark.few("exact")
@pytest.mark.parametrize("method", ["exact", "genetic"])
def test_together_the_automatic_budgets_can_all_be_kept(method: str, folder: Path, tmp_path: Path) -> None:
    targets, accuracy = on_two_devices(network(SMALL[0]), 5)
    asked = Settings.model_validate({"method": method, "together": True})
    request = SearchRequest(supernet=folder, targets=targets, accuracy=accuracy, settings=asked)
    found = run(request, tmp_path, Silent())
    assert {path.parent.name for path in tmp_path.rglob("front.json")} == {"a", "b"}
    for front in found.values():
        assert len(front["winners"]) == asked.budget_count
        assert all(row["predicted_ms"] <= row["budget_ms"] for row in front["winners"])
        scores = [row["predicted_score"] for row in front["winners"]]
        assert method == "genetic" or scores == sorted(scores)
        assert front["front"]


@some
@given(seeds, st.sampled_from(SMALL), st.floats(0.2, 0.9))
def test_together_the_limits_of_all_devices_are_kept_and_none_is_better(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str, share: float
) -> None:
    net = network(name)
    targets, accuracy = on_two_devices(net, seed)
    rng = np.random.default_rng(seed)
    codes = np.unique(net.space.canonical_codes(all_codes(net)), axis=0)
    assert targets[1].energy is not None
    energy_mj = targets[1].energy.predict(codes)
    memory_mib = MemoryPredictor.compile(net, ONNXRUNTIME).predict(codes)
    parameters = parameter_sums(net).predict(codes)
    latency_ms = np.stack([target.latency.predict(codes) for target in targets])
    budgets = [float(np.quantile(row, share)) for row in latency_ms]
    most = [float(np.quantile(row, rng.uniform(share, 1))) for row in (energy_mj, memory_mib, parameters)]
    asked = Settings.model_validate(
        {"method": "exact", "together": True, "tolerance": 0}
        | {"device_budgets_ms": {"a": [budgets[0]], "b": [budgets[1]]}}
        | {"limits": {"parameters": 2 * most[2]}}
        | {"device_limits": {"a": {"memory_mib": most[1], "parameters": most[2]}, "b": {"energy_mj": most[0]}}}
    )
    shares = np.stack([*latency_ms, energy_mj, memory_mib, parameters]) / np.array([*budgets, *most])[:, None]
    feasible = (shares <= 1).all(axis=0)
    folder, out = supernet(name, tmp_path_factory.getbasetemp()), tmp_path_factory.mktemp("found")
    request = SearchRequest(supernet=folder, targets=targets, accuracy=accuracy, settings=asked)
    if not feasible.any():
        with pytest.raises(UserError, match=r"^search\."):
            run(request, out, Silent())
        return
    found = run(request, out, Silent())
    (first,), (second,) = (found[device]["winners"] for device in "ab")
    code = net.space.encode([first["config"]])
    (row,) = np.flatnonzero((codes == net.space.canonical_codes(code)).all(axis=1))
    assert (shares[:, row] <= 1 + 1e-9).all()
    assert second["digest"] == first["digest"]
    assert first["predicted_memory_mib"] == pytest.approx(memory_mib[row])
    assert second["predicted_energy_mj"] == pytest.approx(energy_mj[row])
    scores = accuracy.score(codes)
    assert first["stopped"] != "optimal" or first["predicted_score"] >= scores[feasible].max() - 1e-9
    assert first["predicted_score"] <= scores[(shares <= 1 + 1e-9).all(axis=0)].max() + 1e-9


def test_a_device_without_a_limit_of_its_own_has_that_of_all(folder: Path, tmp_path: Path) -> None:
    targets, accuracy = on_two_devices(network(SMALL[0]), 5)
    net = network(SMALL[0])
    middle = float(np.median(parameter_sums(net).predict(all_codes(net))))
    largest = {}
    for target in targets:
        asked = Settings.model_validate(
            {"method": "exact", "limits": {"parameters": middle}, "device_limits": {"b": {"parameters": 1.2 * middle}}}
        )
        out = tmp_path / target.name
        out.mkdir()
        request = SearchRequest(supernet=folder, targets=[target], accuracy=accuracy, settings=asked)
        found = run(request, out, Silent())[target.name]
        largest[target.name] = max(row["parameters"] for row in found["winners"])
    assert largest["a"] <= middle < largest["b"] <= 1.2 * middle


@pytest.mark.parametrize("parameter_bytes", [4, 2, 1])
def test_parameters_count_in_the_precision_of_the_device(parameter_bytes: int) -> None:
    net = compiled(next(iter(NETWORKS)))
    codes = net.space.random_codes(20, np.random.default_rng(0))
    found = MemoryPredictor.compile(net, Rules(parameter_bytes=parameter_bytes)).predict(codes)
    configs = [net.space.decode(row) for row in codes]
    wanted = [net.parameters(one) * parameter_bytes + net.peak_activation_bytes(one) for one in configs]
    assert found * 2**20 == pytest.approx(wanted)
