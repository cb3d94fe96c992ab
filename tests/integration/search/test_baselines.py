"""Baselines of a real SuperNet, evaluated and timed on a real device."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from pydantic import ValidationError
from safetensors.torch import save_model

import tailor_ir
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.messages import MeasureSettings
from tailor_ir.spaces.selectors import SpaceSpec
from tasks import search
from tasks.base.artifacts import SubNetStore, read_json, read_lines
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import Baselines
from tasks.data import DataSettings, load_splits
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.ncnn.conversion import ConversionLimits
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracy, count_correct, recalibrate_module
from tasks.measuring.subnets import LeasedDevice, SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities
from tasks.prediction.latency import Correction, LatencyPredictor
from tasks.prediction.sensitivity import images_of
from tasks.prediction.settings import Settings as PredictSettings
from tasks.prediction.sums import Sums
from tasks.search.baselines import stage as baselines
from tasks.search.baselines import subnets
from tasks.search.problem import uniform_codes

MEASURE = MeasureSettings(warmup_ms=1, min_blocks=1, time_cap_ms=5, patience=0.0)
PREDICT = PredictSettings(validation_images=60, recalibration_images=64, rounds=1, measure=MEASURE)
SETTINGS = baselines.BaselineSettings(uniform=True, random=6, macs=True)
SEARCH = search.Settings(generations=5)
DATA = DataSettings(kind="digits", workers=1)
SPACE: SpaceSpec = {"resolution": [24, 32], "*.width_mult": [0.5, 0.75, 1.0]}


@dataclass(frozen=True)
class Case:
    supernet: Path
    accuracy: AccuracyPredictor
    front: Path
    networks: tuple[baselines.Trained, ...]
    sibling: torch.nn.Module

    @property
    def net(self) -> Any:
        return tailor_ir.load(self.supernet)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("baselines")
    torch.manual_seed(0)
    network = timm.create_model("resnet10t", num_classes=10, channels=(32, 64, 128, 256)).eval()
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), SPACE).save(folder / "supernet")
    net = tailor_ir.load(folder / "supernet")
    full = net.macs(net.max_config)
    sums = Sums.compile(net, {f: f.macs / full for f in net.unique_operators()})
    latency = LatencyPredictor(sums, Correction(), Sums(net.space.cardinalities.tolist(), ()))
    shares = [net.macs(config) / full for config in modifications(net.space)]
    table = sensitivities(net.space, [Accuracy(round(900 * s**0.1), 1000, 2 - s) for s in shares])
    target = search.Target(name="here", latency=latency)
    request = search.SearchRequest(
        supernet=folder / "supernet", targets=[target], accuracy=AccuracyPredictor(table), settings=SEARCH
    )
    search.run(request, folder, Silent())
    sibling = timm.create_model("test_resnet", num_classes=10).eval()
    save_model(sibling, str(folder / "weights.safetensors"))
    tailor_ir.compile(sibling, torch.zeros(1, 3, 32, 32), {}).export({}, folder / "pruned.onnx")
    file = ModelSettings(kind="onnx", name="pruned.onnx", path=folder / "pruned.onnx")
    networks = (
        baselines.Trained(
            baseline="siblings",
            name="test_resnet",
            model=ModelSettings(name="test_resnet"),
            weights=folder / "weights.safetensors",
        ),
        baselines.Trained(baseline="pruning", name="pruned.onnx", model=file),
    )
    return Case(folder / "supernet", AccuracyPredictor(table), folder / search.FRONT_FILE, networks, sibling)


@pytest.fixture(scope="module")
def device() -> Iterator[AgentClient]:
    with local_agent(backend="onnxruntime") as client, client.lease():
        yield client


def chosen_in(case: Case, out: Path) -> StageResult:
    searched = search.SearchedSuperNet(supernet=case.supernet, accuracy=case.accuracy, images=images_of(PREDICT, DATA))
    request = baselines.BaselineRequest(
        settings=SETTINGS,
        search=SEARCH,
        searched=searched,
        data=DATA,
        networks=case.networks,
        fronts={"here": case.front},
    )
    return baselines.choose(request, out, Silent())


@pytest.fixture(scope="module")
def chosen(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StageResult]:
    out = tmp_path_factory.mktemp("chosen")
    return out, chosen_in(case, out)


def images(split: Any) -> EvaluationData:
    splits = load_splits(DATA)
    limit = 60 if split == "validation" else None
    return EvaluationData(splits[split], splits["train"], limit=limit, recalibration_images=64)


def test_every_baseline_is_there_with_what_its_networks_have(case: Case, chosen: tuple[Path, StageResult]) -> None:
    out, found = chosen
    assert read_json(out / baselines.BASELINES_FILE) == found
    net = case.net
    names = [row["baseline"] for row in found["rows"]]
    assert list(dict.fromkeys(names)) == ["uniform", "random", "macs", "siblings", "pruning"]
    assert names.count("random") == 6
    for row in (found["rows"][0], found["rows"][-3], found["winners"]["here"][0]):
        for split, share in row["accuracy"].items():
            assert share == accuracy(net, row["config"], images(split)).share
        assert row["macs"] == net.macs(row["config"])
        assert row["digest"] == net.space.digest(row["config"])
    budgets = [row["budget_ms"] for row in read_json(case.front)["winners"]]
    assert [row["budget_ms"] for row in found["winners"]["here"]] == budgets


def test_networks_of_their_own_are_evaluated_as_subnets_are(case: Case, chosen: tuple[Path, StageResult]) -> None:
    sibling, pruned = chosen[1]["rows"][-2:]
    data = images("test")
    recalibrate_module(case.sibling, data.calibration((32, 32)))
    share = count_correct(case.sibling, data.batches((32, 32))).share
    assert round(abs(sibling["accuracy"]["test"] - share) * len(load_splits(DATA)["test"])) <= 2
    assert pruned["accuracy"] == sibling["accuracy"]
    assert (sibling["macs"], sibling["parameters"]) == (pruned["macs"], pruned["parameters"])
    assert sibling["name"] == "test_resnet"


def test_uniform_subnets_have_one_level_at_each_resolution(case: Case) -> None:
    space = case.net.space
    found = {row.tobytes() for row in subnets.uniform(space)}
    assert len(found) == 2 * 3
    resolution = np.array([variable.kind == "resolution" for variable in space.variables])
    for mask in (~resolution, np.ones_like(resolution)):
        assert {row.tobytes() for row in uniform_codes(space, mask)} <= found


def test_uniform_subnets_are_shrunk_in_width_alone_too() -> None:
    network = timm.create_model("test_resnet", num_classes=10, in_chans=1).eval()
    space = tailor_ir.compile(network, torch.zeros(1, 1, 32, 32)).space
    kinds = np.array([variable.kind for variable in space.variables])
    largest = space.cardinalities - 1
    found = subnets.uniform(space)
    whole = found[(found == largest)[:, kinds == "depth"].all(axis=1)]
    assert len(whole) == 3 * 3 < len(found)
    shares = whole[:, (kinds == "width_mult") & (largest == 2)]
    assert {tuple(row) for row in shares} == {(level,) * shares.shape[1] for level in (0, 1, 2)}


def test_random_subnets_are_different_ones_as_many_as_there_are(case: Case) -> None:
    space = case.net.space
    first = subnets.random(space, 20, np.random.default_rng(3))
    assert len({row.tobytes() for row in first}) == 20
    assert np.array_equal(first, subnets.random(space, 20, np.random.default_rng(3)))
    assert len(subnets.random(space, 10**6, np.random.default_rng(0))) == space.distinct


def test_macs_in_the_place_of_latency_give_a_front_of_macs(case: Case) -> None:
    net = case.net
    codes = subnets.by_macs(net, case.accuracy, SEARCH, 6, Silent())
    macs = np.array([net.macs(net.space.decode(code)) for code in codes])
    others = net.space.random_codes(200, np.random.default_rng(1))
    their_macs = np.array([net.macs(net.space.decode(code)) for code in others])
    assert macs.min() <= their_macs.min()
    assert len(codes) > 3
    for code, own in zip(codes, macs, strict=True):
        assert case.accuracy.score(code[None])[0] >= case.accuracy.score(others[their_macs <= own]).max(initial=0)


@pytest.mark.long
def test_both_sides_are_timed_side_by_side_and_a_second_call_goes_on(
    case: Case, chosen: tuple[Path, StageResult], device: AgentClient, tmp_path: Path
) -> None:
    store, slow_ms = SubNetStore(tmp_path / "subnets"), 1e6
    meter = SubNetMeter(case.net, device, MEASURE, ConversionLimits())
    known = meter.lines(store, case.supernet, tmp_path / "refined.jsonl", Silent())
    for row in chosen[1]["winners"]["here"]:  # what they were chosen by
        times = {"p50_ms": slow_ms, "p90_ms": slow_ms, "spread": 0.0, "n": 5, "reference_ms": slow_ms}
        known.append({"key": row["digest"], "state": "ok", "reason": None, **times})
    here = LeasedDevice(name="here", client=device)
    request = baselines.ComparisonRequest(supernet=case.supernet, baselines=chosen[0], timing=PREDICT, store=store)
    found = baselines.compare_on(here, request, tmp_path, Silent())
    assert max(row["measured_ms"] for row in found["winners"]) < slow_ms
    assert read_json(tmp_path / baselines.COMPARED_FILE) == found
    lines = read_lines(tmp_path / "timed.jsonl")
    digests = {row["digest"] for row in (*found["rows"], *found["winners"])}
    assert {line["key"] for line in lines} == digests | {case.net.space.digest(case.net.max_config)}
    assert all(row["measured_ms"] > 0 for row in (*found["rows"], *found["winners"]))
    sibling, pruned = found["rows"][-2:]
    assert sibling["measured_ms"] == pytest.approx(pruned["measured_ms"], rel=0.5)
    kept = [row["measured_ms"] <= row["budget_ms"] for row in found["winners"]]
    assert found["within_budget"] == np.mean(kept)
    assert found["within_budget_when_chosen"] is None
    assert set(found["baselines"]) == {"uniform", "random", "macs", "siblings", "pruning"}
    assert len(found["budgets"]) == len({row["budget_ms"] for row in found["winners"]})
    again = baselines.compare_on(here, request, tmp_path, Silent())
    assert len(read_lines(tmp_path / "timed.jsonl")) - len(lines) <= len(digests)
    assert [row["digest"] for row in again["rows"]] == [row["digest"] for row in found["rows"]]


@pytest.mark.long
def test_networks_that_are_no_subnets_run_by_kernels_of_their_own_choice_on_the_device(
    case: Case, chosen: tuple[Path, StageResult], tmp_path: Path
) -> None:
    in_situ = MeasureSettings(warmup_ms=1.0, min_blocks=2, time_cap_ms=10.0, layers_ms=10.0, patience=0.0)
    few = Path(shutil.copytree(chosen[0], tmp_path / "few"))
    every = Baselines.read(few / baselines.BASELINES_FILE)  # SubNets that are compared on ncnn are converted, too
    others = tuple(row for row in every.rows if row.network)
    Baselines(rows=others, winners={"here": every.winners["here"][:1]}).write(few / baselines.BASELINES_FILE)
    request = baselines.ComparisonRequest(supernet=case.supernet, baselines=few, timing=PREDICT, in_situ=in_situ)
    with local_agent(backend="ncnn") as client, client.lease():
        here = LeasedDevice(name="here", client=client)
        found = baselines.compare_on(here, request, tmp_path, Silent())
        files = {file: read_lines(file) for file in tmp_path.glob("in_situ_*.jsonl")}
        baselines.compare_on(here, request, tmp_path, Silent())
    assert len(files) == len([row for row in found["rows"] if row["network"]]) == 2
    for file, lines in files.items():
        assert {line["state"] for line in lines} == {"ok"}
        kernels = [{*line["implementations"].values()} for line in lines]
        assert kernels.count(set()) == kernels.count({"sgemm", "direct"}) == kernels.count({"direct"}) > 2
        assert read_lines(file) == lines


def test_what_is_evaluated_is_kept(case: Case, chosen: tuple[Path, StageResult]) -> None:
    out, found = chosen
    files = {file: file.read_bytes() for file in out.rglob("evaluated_*.jsonl")}
    assert len(files) == 2 * 3
    assert chosen_in(case, out) == found
    assert {file: file.read_bytes() for file in files} == files


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"siblings": ["resnet62"]}, r"timm has no network 'resnet62'; allowed: for example .*resnet26"),
        ({"files": {"pruning": ["absent.onnx"]}}, r"'absent\.onnx' does not exist; allowed: \.onnx files"),
        ({"files": {"macs": ["a.onnx"]}}, "'macs' is a baseline already"),
        ({"siblings": [{"name": "resnet18", "width": 1}]}, "Extra inputs are not permitted"),
    ],
)
def test_baselines_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        baselines.BaselineSettings.model_validate(settings)


@pytest.mark.long
def test_files_for_other_images_or_classes_are_refused(case: Case, tmp_path: Path) -> None:
    def of(classes: int, size: int) -> baselines.Trained:
        network = timm.create_model("test_resnet", num_classes=classes).eval()
        file = tmp_path / "other.onnx"
        tailor_ir.compile(network, torch.zeros(1, 3, size, size), {}).export({}, file)
        return baselines.Trained(baseline="a", name="other", model=ModelSettings(kind="onnx", path=file))

    train = load_splits(DATA)["train"]
    with pytest.raises(UserError, match="gives 7 outputs; allowed: 10"):
        subnets.frozen(of(7, 32), train, tmp_path / "a")
    with pytest.raises(UserError, match="takes 3x48x48; allowed: 3x32x32, the data's images"):
        subnets.frozen(of(10, 48), train, tmp_path / "b")
