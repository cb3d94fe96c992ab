"""The table of stages: its order, what a row may read, and how its tasks are called in Prefect."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import timm
import torch

import tailor_ir
import tasks.export
from flows.config import RetargetConfig, RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.run import Output, Run
from flows.pipeline.session import open_run
from flows.pipeline.stages import PIPELINE, RETARGETING, supernets, winners
from flows.pipeline.stages.levels import EXITS
from flows.pipeline.stages.predictors import LATENCY, PROFILE
from flows.pipeline.stages.spec import ALONE, Context, StageSpec
from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.base.schemas.winners import MEASURED_FILE, Candidates
from tests.support.flows.fixtures import Command
from tests.support.flows.prefect_server import own_rows
from tests.support.flows.tiny import TINY

GIVEN = {"compile", "finetune"}
"""Stages in whose place `adapt` has a SuperNet."""


@pytest.mark.parametrize(("table", "given"), [(PIPELINE, set()), (RETARGETING, GIVEN)])
def test_every_row_reads_rows_above_it(table: tuple[StageSpec, ...], given: set[str]) -> None:
    above = set(given)
    for spec in table:
        assert set(spec.needs) <= above, spec.name
        assert set(spec.reads) <= above | {"base", "sibling", "refine"}, spec.name
        assert spec.name not in above
        above.add(spec.name)


@pytest.mark.parametrize("command", ["enumerate", "plan", "profile", "predict", "search", "export", "report"])
def test_every_command_ends_at_a_row_of_both_tables(command: str) -> None:
    assert all(any(spec.ends == command for spec in table) for table in (PIPELINE, RETARGETING))


@pytest.mark.long
def test_a_row_sees_the_outputs_that_it_names_and_no_others(tmp_path: Path) -> None:
    config = validate(RunConfig, compose_config("config", [*TINY, f"output_dir={tmp_path / 'out'}"]))
    output = Output(stage="x", key="k", folder=tmp_path, result={}, seconds=0.0, cached=False)
    outputs = {name: {ALONE: output} for name in ("base", "compile", "enumerate", "profile")}
    with open_run(config, "enumerate") as run:
        profile = Context(run, config, PROFILE, "onnxruntime", outputs)
        assert profile.supernet == tmp_path / "supernet"
        with pytest.raises(KeyError):
            profile.output("profile")
        latency = Context(run, config, LATENCY, "onnxruntime", outputs)
        assert latency.file("profile", "lut") == tmp_path / "lut"
        with pytest.raises(KeyError):
            latency.output("base")


def test_winners_of_several_devices_together_are_refined_once(tmp_path: Path) -> None:
    words = ["device=[ncnn,onnxruntime]", "search.together=true", "refine.candidates=2", f"output_dir={tmp_path}"]
    config = validate(RunConfig, compose_config("config", [*TINY, *words]))
    assert winners.REFINE.wanted(config, "export")
    assert winners.REFINE.scope.labels(config) == winners.SEARCH.scope.labels(config) == (winners.TOGETHER,)
    fronts: dict[str, Any] = {"ncnn": {"winners": [1]}, "onnxruntime": {"winners": [2]}}
    output = Output(stage="refine/together", key="k", folder=tmp_path, result=fronts, seconds=0.0, cached=False)
    found = winners.REFINE.by_device(config, {winners.TOGETHER: output})
    assert {name: (one.stage, one.folder, one.result) for name, one in found.items()} == {
        name: (f"refine/{name}", tmp_path / name, front) for name, front in fronts.items()
    }


def test_the_candidates_of_a_refinement_stand_in_for_winners_that_miss(tmp_path: Path) -> None:
    Candidates(candidates=(), budgets=(), likely={}).write(tmp_path / MEASURED_FILE)
    make = substitutes_of(tmp_path, "refine.candidates=2")
    assert make is not None
    assert isinstance(make(), tasks.export.MeasuredSubstitutes)


def test_winners_of_several_devices_together_are_never_replaced(tmp_path: Path) -> None:
    words = ("device=[ncnn,onnxruntime]", "search.together=true")
    assert substitutes_of(tmp_path, *words) is None
    assert substitutes_of(tmp_path, *words, "refine.candidates=2") is None
    assert substitutes_of(tmp_path, words[0]) is not None


def substitutes_of(folder: Path, *words: str) -> Callable[[], tasks.export.Substitutes] | None:
    """What the export on onnxruntime is given, after stages with one folder."""
    config = validate(RunConfig, compose_config("config", [*TINY, *words, f"output_dir={folder / 'out'}"]))
    output = Output(stage="x", key="k", folder=folder, result={}, seconds=0.0, cached=False)
    rows = [spec.name for spec in PIPELINE if spec.wanted(config, "export")]
    outputs = {name: dict.fromkeys(config.device, output) for name in rows}
    no_run = cast("Run", None)  # nothing is measured
    return winners._substitutes(Context(no_run, config, winners.EXPORT, "onnxruntime", outputs))


@pytest.mark.long
def test_what_a_search_leaves_stands_in_for_winners_that_miss(
    finished: dict[str, Any], command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(request: tasks.export.ExportRequest, *_: Any) -> None:
        assert request.substitutes is not None
        raise UserError("export", f"is given {type(request.substitutes()).__name__}")

    monkeypatch.setattr(tasks.export, "run", run)
    with pytest.raises(AssertionError):
        command("export", "export.replacements=1")
    assert "autotailor: export: is given SearchedSubstitutes" in capsys.readouterr().err


@pytest.mark.long
def test_policies_are_made_where_a_space_has_exits(tmp_path: Path) -> None:
    def wanted(*words: str) -> bool:
        return EXITS.wanted(validate(RunConfig, compose_config("config", [*TINY, *words])), "report")

    assert wanted("space.exits=auto")
    assert wanted("space.exits.head=light")
    assert not wanted()
    assert not wanted("space.exits=frozen")
    assert not wanted("space.exits=auto", "exits.subnets=0")
    network = timm.create_model("test_resnet", num_classes=10).eval()
    for name, space in (("plain", {}), ("early", {"exits": "auto"})):
        tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), space).save(tmp_path / name)
        adapt = validate(RetargetConfig, compose_config("retarget", ["data=digits", f"supernet={tmp_path / name}"]))
        assert EXITS.wanted(adapt, "report") == (name == "early")


@pytest.mark.long
def test_a_report_has_the_accuracy_of_what_it_starts_from(tmp_path: Path) -> None:
    network = timm.create_model("test_resnet", num_classes=10).eval()
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32)).export({}, tmp_path / "net.onnx")
    words = ["model=onnx", f"model.path={tmp_path / 'net.onnx'}", f"output_dir={tmp_path / 'out'}"]
    config = validate(RunConfig, compose_config("config", words))
    plain = validate(RunConfig, compose_config("config", TINY))
    assert supernets.GIVEN.wanted(config, "report")
    assert not supernets.GIVEN.wanted(config, "profile")
    assert not supernets.GIVEN.wanted(plain, "report"), "stage base tells it"
    with open_run(config, "enumerate") as run:
        output = Context(run, config, supernets.GIVEN, ALONE, {})
        result = supernets.GIVEN.body(output, tmp_path, Silent())
    shares = {"validation_accuracy", "test_accuracy"}
    assert result.keys() == {"version", *shares, "validation_samples", "test_samples"}


@pytest.mark.long
def test_tasks_in_prefect_are_called_by_stage_and_device(finished: dict[str, Any], command: Command) -> None:
    command("search")
    names = {run["name"] for run in own_rows("task_runs")}
    assert {"compile", "enumerate", "profile/onnxruntime"} <= names
    assert not any(re.search("-[0-9a-f]{3}$", name) for name in names)  # as names of Prefect's own end
