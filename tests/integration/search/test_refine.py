"""Refinement on a real SuperNet and a real device, with a latency predictor that is wrong by a factor of ten."""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.messages import MeasureSettings
from tailor_ir.spaces.selectors import SpaceSpec
from tasks import search
from tasks.base.artifacts import NO_STORE, SubNetStore, read_json, read_lines
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings
from tasks.evaluation.ncnn.conversion import ConversionLimits
from tasks.evaluation.subnets import Accuracy, EvaluationData
from tasks.measuring.subnets import SubNetMeter
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.resources import MemoryPredictor
from tasks.prediction.settings import Settings as PredictSettings
from tasks.prediction.sums import Sums, parameter_sums
from tasks.search.problem import Problem
from tasks.search.refine import stage as refine
from tasks.search.refine.candidates import Around
from tasks.search.refine.known import Known, best, worth_evaluating
from tasks.search.refine.stage import CONFIRMATIONS

MEASURE = MeasureSettings(warmup_ms=2, min_blocks=2, time_cap_ms=15, patience=0.0)
PREDICT = PredictSettings(validation_images=60, recalibration_images=64, rounds=1, measure=MEASURE)
SETTINGS = refine.RefineSettings(candidates=5)
TENTH = 0.1
"""What the predictor says of the largest SubNet, over what it really takes."""


@dataclass(frozen=True)
class Case:
    supernet: Path
    predictors: tuple[LatencyPredictor, AccuracyPredictor]
    largest_ms: float
    images: EvaluationData

    @property
    def store(self) -> SubNetStore:
        return SubNetStore(self.supernet.parent / "subnets")

    @property
    def net(self) -> Any:
        return tailor_ir.load(self.supernet)

    def searched(self, store: SubNetStore) -> search.SearchedSuperNet:
        _, accuracy = self.predictors
        return search.SearchedSuperNet(supernet=self.supernet, accuracy=accuracy, images=self.images, store=store)


@pytest.fixture(scope="module")
def device() -> Iterator[AgentClient]:
    with local_agent(backend="onnxruntime") as client, client.lease():
        yield client


@pytest.fixture(scope="module")
def case(device: AgentClient, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=10).eval()
    space: SpaceSpec = {"resolution": [24, 32], "*.width_mult": [0.5, 0.75, 1.0]}
    folder = tmp_path_factory.mktemp("refine")
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space).save(folder / "supernet")
    net = tailor_ir.load(folder / "supernet")
    meter = SubNetMeter(net, device, MEASURE, ConversionLimits(), rounds=4)
    meter.measure([net.max_config], folder / "largest.jsonl", Silent())
    largest_ms = min(line["p50_ms"] for line in read_lines(folder / "largest.jsonl"))
    full = net.macs(net.max_config)
    sums = Sums.compile(net, {f: f.macs / full * TENTH * largest_ms for f in net.unique_operators()})
    latency = LatencyPredictor(sums, Correction(), Sums(net.space.cardinalities.tolist(), ()))
    shares = [net.macs(config) / full for config in modifications(net.space)]
    table = sensitivities(net.space, [Accuracy(round(900 * s**0.1), 1000, 2 - s) for s in shares])
    images = sensitivity.images_of(PREDICT, DataSettings(kind="digits", workers=1))
    return Case(folder / "supernet", (latency, AccuracyPredictor(table)), largest_ms, images)


def found_in(case: Case, budgets_ms: tuple[float, ...], folder: Path, **limits: float) -> Path:
    settings = search.Settings.model_validate({"method": "exact", "budgets_ms": budgets_ms, "limits": limits})
    out = folder / "search"
    out.mkdir()
    latency, accuracy = case.predictors
    target = search.Target(name="here", latency=latency)
    request = search.SearchRequest(supernet=case.supernet, targets=[target], accuracy=accuracy, settings=settings)
    search.run(request, out, Silent())
    return out


@pytest.fixture(scope="module")
def searched(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Winners of a budget below the largest SubNet's latency, and of one above it."""
    return found_in(case, (0.6 * case.largest_ms, 2 * case.largest_ms), tmp_path_factory.mktemp("refine"))


def refined(case: Case, found: Path, device: AgentClient, out: Path) -> StageResult:
    return refined_on(case, {"here": found}, device, out, SETTINGS, case.store)["here"]


def refined_on(
    case: Case,
    searches: dict[str, Path],
    device: AgentClient,
    out: Path,
    settings: refine.RefineSettings,
    store: SubNetStore,
) -> dict[str, StageResult]:
    latency, _ = case.predictors
    devices = [
        refine.SearchedDevice(search.Target(name=name, latency=latency), folder, lambda: nullcontext(device))
        for name, folder in searches.items()
    ]
    searched = case.searched(store)
    refine.measure(settings, PREDICT, searched, devices, out, Silent())
    return refine.choose(settings, searched, searches, out, Silent())


def records(store: SubNetStore, what: str) -> list[dict[str, Any]]:
    """What a store has of SubNets: their latencies or their accuracies."""
    assert store.folder is not None
    folders = [file.parent for file in store.folder.glob("*/key.json") if read_json(file)["measured"] == what]
    return [record for folder in folders for record in read_lines(folder / "subnets.jsonl")]


@pytest.fixture(scope="module")
def result(
    case: Case, searched: Path, device: AgentClient, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, StageResult]:
    out = tmp_path_factory.mktemp("refined")
    return out, refined(case, searched, device, out)


def test_winners_are_the_most_accurate_of_what_keeps_the_budget_by_measurement(
    case: Case, searched: Path, result: tuple[Path, StageResult]
) -> None:
    out, front = result
    assert read_json(out / search.FRONT_FILE) == front
    candidates = {row["digest"]: row for row in read_json(out / refine.MEASURED_FILE)["candidates"]}
    assert len(candidates) > SETTINGS.candidates
    assert candidates.keys() >= {row["digest"] for row in front["baseline"]} != set()
    accuracies = {line["digest"]: line["correct"] / line["total"] for line in read_lines(out / "evaluated.jsonl")}
    before = read_json(searched / search.FRONT_FILE)["winners"]
    assert before[0]["digest"] == case.net.space.digest(case.net.max_config)  # predicted to be ten times as fast
    ms = {digest: row["latency"]["p50_ms"] for digest, row in candidates.items()}
    sure_ms = {digest: max(ms[digest], row["smoothed_ms"]) for digest, row in candidates.items()}
    for old, new in zip(before, front["winners"], strict=True):
        budget_ms = old["budget_ms"]
        ways = (
            [digest for digest, own_ms in sure_ms.items() if own_ms <= 0.99 * budget_ms],
            [digest for digest, own_ms in sure_ms.items() if own_ms <= budget_ms],
            [digest for digest, own_ms in ms.items() if own_ms <= budget_ms],
            [min(ms, key=ms.__getitem__)],  # the machine may have become slower since the budgets were made
        )
        within = next(filter(None, ways))
        assert new["within_budget"] == any(own_ms <= budget_ms for own_ms in ms.values())
        assert new["digest"] in within
        assert new["measured_ms"] == ms[new["digest"]]
        assert new["measured_accuracy"] == accuracies[new["digest"]] == max(accuracies[digest] for digest in within)
        assert new["config"] == candidates[new["digest"]]["config"]
        assert new["macs"] == case.net.macs(new["config"])
        assert set(old) - {"stopped", "generations"} < set(new)
        stays, accuracy = new["digest"] == old["digest"], candidates[old["digest"]]["accuracy"]
        assert ("stopped" in new) == stays
        replaced = {"digest": old["digest"], "measured_ms": ms[old["digest"]], "measured_accuracy": accuracy}
        assert new.get("replaces") == (None if stays else replaced)
    assert front["refinement"]["replaced"] == sum(row.get("replaces") is not None for row in front["winners"])
    missed_ms = [row["budget_ms"] for row in front["winners"] if not row["within_budget"]]
    assert front["refinement"]["missed_ms"] == missed_ms


def test_winners_are_measured_again_before_they_are_believed(result: tuple[Path, StageResult]) -> None:
    out, front = result
    lines = Counter(line["key"] for line in read_lines(out / "timed.jsonl"))
    winners = {row["digest"] for row in front["winners"]}
    again = {digest for digest, count in lines.items() if count >= 2 * PREDICT.rounds}
    assert winners <= again or len(again) >= CONFIRMATIONS, "each time another one won, until it was too often"


def test_the_predictors_errors_on_the_candidates_are_told(result: tuple[Path, StageResult]) -> None:
    out, front = result
    accuracies = {line["digest"]: line["correct"] / line["total"] for line in read_lines(out / "evaluated.jsonl")}
    rows = [row for row in read_json(out / refine.MEASURED_FILE)["candidates"] if row["accuracy"] is not None]
    assert [row["accuracy"] for row in rows] == [accuracies[row["digest"]] for row in rows]
    errors = [abs(row["predicted_ms"] / row["latency"]["p50_ms"] - 1) for row in rows]
    points = [100 * abs(row["predicted_accuracy"] - row["accuracy"]) for row in rows]
    told = front["refinement"]
    assert told["latency"]["n"] == told["evaluated"] == len(errors)
    assert told["latency"]["median_relative_error"] == pytest.approx(np.median(errors))
    assert 0.5 < told["latency"]["max_relative_error"] < 1
    assert told["accuracy"]["mean_error_points"] == pytest.approx(np.mean(points))


def test_what_is_measured_is_kept(
    case: Case, searched: Path, device: AgentClient, result: tuple[Path, StageResult], tmp_path: Path
) -> None:
    first, _ = result
    out = shutil.copytree(first, tmp_path / "again")  # a noisy device is measured more, which changes medians
    files = {name: (out / name).read_bytes() for name in ("candidates.jsonl", "timed.jsonl", "evaluated.jsonl")}
    refined(case, searched, device, out)
    for name, content in files.items():
        assert (out / name).read_bytes().startswith(content)
    before, after = (
        {row["digest"] for row in read_json(folder / refine.MEASURED_FILE)["candidates"]} for folder in (first, out)
    )
    more = read_lines(out / "candidates.jsonl")[files["candidates.jsonl"].count(b"\n") :]
    assert all(line["round"] >= min(SETTINGS.rounds, SETTINGS.candidates) for line in more), "for missed budgets alone"
    assert before <= after
    assert more or before == after
    known = [line["digest"] for line in read_lines(out / "evaluated.jsonl")]
    assert len(known) == len(set(known))


def test_what_the_store_has_is_not_evaluated_again(
    case: Case, searched: Path, result: tuple[Path, StageResult], tmp_path: Path
) -> None:
    out, front = result
    shutil.copy(out / refine.MEASURED_FILE, tmp_path)
    before = records(case.store, "accuracy")
    found = refine.choose(SETTINGS, case.searched(case.store), {"here": searched}, tmp_path, Silent())
    assert found == {"here": front}
    assert records(case.store, "accuracy") == before
    evaluated = {line["digest"]: line for line in read_lines(tmp_path / "evaluated.jsonl")}
    assert evaluated.items() <= {line["digest"]: line for line in read_lines(out / "evaluated.jsonl")}.items()
    assert len(evaluated) == front["refinement"]["evaluated"]
    assert len({record["digest"] for record in before}) == len(before)


def test_what_the_store_has_is_timed_again_only_by_stages_that_time_anew(
    case: Case, device: AgentClient, tmp_path: Path
) -> None:
    net, slow_ms, store = case.net, 1e4, SubNetStore(tmp_path / "subnets")
    meter = SubNetMeter(net, device, MEASURE, ConversionLimits())
    known = {"state": "ok", "p50_ms": slow_ms, "p90_ms": slow_ms, "spread": 0.0, "n": 5, "reference_ms": slow_ms}
    first = meter.lines(store, case.supernet, tmp_path / "first.jsonl", Silent())
    for config in (net.max_config, net.min_config):
        first.append({"key": net.space.digest(config), "reason": None, **known})

    def measured(name: str, **options: Any) -> list[float]:
        lines = replace(meter, **options).lines(
            store, case.supernet, tmp_path / name, Silent(), anew=name == "anew.jsonl"
        )
        found = []
        for one in meter.measure([net.max_config, net.min_config], lines, Silent()):
            assert one.p50_ms is not None
            found.append(one.p50_ms)
        return found

    assert measured("second.jsonl") == [slow_ms, slow_ms]
    assert len(records(store, "latency")) == 2
    assert max(measured("other.jsonl", settings=MEASURE.model_copy(update={"time_cap_ms": 10}))) < slow_ms
    assert max(measured("anew.jsonl")) < slow_ms


def test_a_budget_that_no_subnet_keeps_is_flagged(case: Case, device: AgentClient, tmp_path: Path) -> None:
    fastest = case.predictors[0].predict(np.zeros((1, len(case.net.space.variables)), np.int64))[0]
    out = tmp_path / "out"
    out.mkdir()
    front = refined(case, found_in(case, (1.01 * fastest,), tmp_path), device, out)
    (winner,) = front["winners"]
    assert not winner["within_budget"]
    assert winner["measured_ms"] == min(
        row["latency"]["p50_ms"] for row in read_json(out / refine.MEASURED_FILE)["candidates"]
    )
    assert front["refinement"]["missed_ms"] == [1.01 * fastest]


def test_every_candidate_keeps_the_limits_of_the_search(case: Case, device: AgentClient, tmp_path: Path) -> None:
    memory = MemoryPredictor.compile(case.net)
    largest_mib = memory.predict(case.net.space.encode([case.net.max_config]))[0]
    most = {"parameters": case.net.parameters(case.net.max_config) / 2, "memory_mib": 0.6 * largest_mib}
    out = tmp_path / "out"
    out.mkdir()
    front = refined(case, found_in(case, (0.5 * case.largest_ms, case.largest_ms), tmp_path, **most), device, out)
    candidates = read_json(out / refine.MEASURED_FILE)["candidates"]
    assert len(candidates) > SETTINGS.candidates
    for row in (*candidates, *front["winners"]):
        assert row["parameters"] == case.net.parameters(row["config"]) <= most["parameters"]
        (needed_mib,) = memory.predict(case.net.space.encode([row["config"]]))
        assert row["predicted_memory_mib"] == pytest.approx(needed_mib)
        assert needed_mib <= most["memory_mib"]
    for row in front["winners"]:
        assert row["within_budget"] == (row["measured_ms"] <= row["budget_ms"])


def test_together_candidates_are_timed_on_each_device_and_evaluated_once(
    case: Case, device: AgentClient, tmp_path: Path
) -> None:
    latency, accuracy = case.predictors
    budgets_ms = {"first": 5 * case.largest_ms, "second": 4 * case.largest_ms}
    most = case.net.parameters(case.net.max_config) - 1
    asked = search.Settings.model_validate(
        {"method": "exact", "together": True, "limits": {"parameters": most}}
        | {"device_budgets_ms": {name: [budget_ms] for name, budget_ms in budgets_ms.items()}}
    )
    targets = [search.Target(name=name, latency=latency) for name in budgets_ms]
    request = search.SearchRequest(supernet=case.supernet, targets=targets, accuracy=accuracy, settings=asked)
    search.run(request, tmp_path / "search", Silent())
    searches, out = {name: tmp_path / "search" / name for name in budgets_ms}, tmp_path / "out"
    out.mkdir()
    fronts = refined_on(case, searches, device, out, refine.RefineSettings(candidates=2, rounds=1), NO_STORE)
    lines = [line["digest"] for line in read_lines(out / refine.EVALUATED_FILE)]
    assert len(lines) == len(set(lines)) > 0
    tables = {name: read_json(out / name / refine.MEASURED_FILE)["candidates"] for name in budgets_ms}
    timed = {name: {row["digest"]: row for row in rows} for name, rows in tables.items()}
    for name, rows in timed.items():
        assert {line["key"] for line in read_lines(out / name / "timed.jsonl")} >= rows.keys()
        assert all(row["parameters"] <= most for row in rows.values())
    uniform = {row["digest"] for row in fronts["first"]["baseline"]}
    assert len(timed["first"].keys() - uniform) <= 2 <= len(timed["first"])
    assert timed["first"].keys() == timed["second"].keys()
    assert all(row["latency"] != timed["second"][digest]["latency"] for digest, row in timed["first"].items())
    for name, front in fronts.items():
        assert read_json(out / name / search.FRONT_FILE) == front
        (row,) = front["winners"]
        assert row["digest"] == fronts["first"]["winners"][0]["digest"]
        assert (row["budget_ms"], row["budgets_ms"]) == (budgets_ms[name], budgets_ms)
        assert row["measured_ms"] == timed[name][row["digest"]]["latency"]["p50_ms"] <= budgets_ms[name]
        assert row["measured_accuracy"] == timed[name][row["digest"]]["accuracy"] is not None


def test_together_the_best_keeps_the_budget_of_each_device() -> None:
    accuracies = {"a": 9, "b": 8, "c": 7, "d": 6}
    known = [
        Known(digest, ms, smoothed_ms, Accuracy(accuracies[digest], 10, 1.0))
        for digest, ms, smoothed_ms in (
            ("a", (1.0, 5.0), (1.0, 5.0)),  # beyond the second device's budget
            ("b", (2.5, 1.0), (2.5, 1.0)),  # beyond the first one's
            ("c", (1.0, 1.0), (1.0, 4.0)),  # by luck
            ("d", (1.5, 3.5), (1.5, 3.5)),
        )
    ]
    assert best(known, (2.0, 3.9), 0.01).digest == "d"
    assert best(known, (2.0, 4.1), 0.01).digest == "c"
    assert best(known, (2.0, 1.0), 0.01).digest == "c", "the one that measured so"
    assert best(known, (1.4, 0.9), 0.01).digest == "c", "the nearest"
    assert best(known, (2.6, 6.0), 0.01).digest == "a"
    ms = {one.digest: one.ms for one in known}
    assert worth_evaluating(ms, [(2.0, 4.0)]) == ["c", "d"]
    assert worth_evaluating(ms, [(0.5, 1.0), (1.0, 0.5)]) == ["c"]


def test_together_candidates_keep_the_predicted_budget_of_each_device(case: Case) -> None:
    space, (latency, accuracy) = case.net.space, case.predictors
    counted = LatencyPredictor(parameter_sums(case.net), Correction(), Sums(space.cardinalities.tolist(), ()))
    codes = np.unique(space.canonical_codes(np.array(list(product(*map(range, space.cardinalities))))), axis=0)
    both = np.stack([latency.predict(codes), counted.predict(codes)], axis=1)
    limits = np.quantile(both, (0.7, 0.4), axis=0).diagonal()
    fits = codes[(both <= limits).all(axis=1)]
    assert 0 < len(fits) < min((both <= limits).sum(axis=0)), "each limit counts"
    winner = fits[np.argmax(accuracy.score(fits))]
    problem = Problem(space, latency, accuracy, (counted,), timed=2)
    found = Around(problem, problem.unlimited, winner[None]).best(winner, limits, 8, winner[None])
    near = fits[(fits != winner).sum(axis=1) <= 2]
    wanted = np.sort(accuracy.score(near))[::-1][1 : 1 + len(found)]
    assert [accuracy.score(code[None])[0] for code, _ in found] == pytest.approx(wanted)
    assert found
    assert all((ms == [latency.predict(code[None])[0], counted.predict(code[None])[0]]).all() for code, ms in found)


def test_candidates_are_the_best_of_all_within_two_modifications(case: Case) -> None:
    space, (latency, accuracy) = case.net.space, case.predictors
    every = np.array(list(product(*map(range, space.cardinalities))))
    codes = np.unique(space.canonical_codes(every), axis=0)
    assert len(codes) > 100
    limit_ms = float(np.quantile(latency.predict(codes), 0.6))
    fits = codes[latency.predict(codes) <= limit_ms]
    winner = fits[np.argmax(accuracy.score(fits))]
    near = fits[(fits != winner).sum(axis=1) <= 2]
    wanted = np.sort(accuracy.score(near))[::-1][1:9]
    problem = Problem(space, latency, accuracy)
    around = Around(problem, problem.unlimited, winner[None])
    limits_ms = np.array([limit_ms])
    found = around.best(winner, limits_ms, 8, winner[None])
    assert [accuracy.score(code[None])[0] for code, _ in found] == pytest.approx(wanted)
    assert all(ms == latency.predict(code[None]) <= limits_ms for code, ms in found)
    assert len({code.tobytes() for code, _ in found} - {winner.tobytes()}) == 8
    assert around.best(winner, np.array([1e-9]), 8, winner[None]) == []
