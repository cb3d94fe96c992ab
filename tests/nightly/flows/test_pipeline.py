"""The whole pipeline on real digits with a small network: what it makes, and what a change makes run again."""

from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import pages
from flows.pipeline.pages import front_rows
from tasks.base.artifacts import read_json, read_lines
from tasks.base.pages.text import milliseconds, percent
from tasks.base.schemas.winners import Baselines, Compared, Front
from tests.support.flows.fixtures import Command
from tests.support.flows.pipeline import _worked


def test_the_same_command_again_works_nothing(
    finished: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    again = command("run")
    (folder,) = again["exports"].values()
    assert capsys.readouterr().out.splitlines()[-1] == f"exported files: {folder}"
    assert Path(folder) == command.output / "exports" / "onnxruntime"
    least = {row["digest"]: row["budget_ms"] for row in reversed(again["devices"][0]["winners"])}
    budgets = {f"{budget_ms:g}ms-test_resnet-{digest[:8]}.onnx" for digest, budget_ms in least.items()}
    assert {file.name for file in Path(folder).glob("*.onnx")} == budgets, (
        "each once, called by the least of its budgets"
    )
    assert _worked(again) == []
    assert [row["seconds"] for row in again["stages"]] == [row["seconds"] for row in finished["stages"]]


def test_more_training_measures_no_operator_again(finished: dict[str, Any], command: Command) -> None:
    changed = command("predict", "finetune.label_smoothing=0.05")
    cached = {stage["stage"]: stage["cached"] for stage in changed["stages"]}
    assert cached == {"sensitivities": False, "latency/onnxruntime": True, "resources/onnxruntime": True}


def test_multirun_runs_every_combination_in_one_store(
    finished: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    results: Any = command("search", "--multirun", "search.seed=0,1", "search.beam_width=16,8")
    assert [result["overrides"][-2:] for result in results] == [
        [f"search.seed={seed}", f"search.beam_width={width}"] for seed in (0, 1) for width in (16, 8)
    ]
    assert [result["stages"][0]["cached"] for result in results] == [True, False, False, False]
    assert "sweep" in capsys.readouterr().out


def test_refinement_measures_candidates_and_exports_what_it_chose(finished: dict[str, Any], command: Command) -> None:
    changed = command("run", "refine.candidates=3", "export.keep_winners=true")
    assert _worked(changed) == ["refine/onnxruntime", "export/onnxruntime"]
    refined = max(command.output.glob("stages/refine/onnxruntime/*/front.json"), key=lambda file: file.stat().st_mtime)
    front, known = read_json(refined), Front.read(refined)
    assert front["refinement"]["measured"] > len({row["digest"] for row in front["winners"]})
    chosen = [row["digest"] for row in changed["devices"][0]["winners"]]
    assert chosen == [row["digest"] for row in front["winners"]]
    told, kept = pages.refined(known), sum(row["within_budget"] for row in front["winners"])
    assert told["candidates measured"] == str(front["refinement"]["measured"])
    assert told["within budget"] == f"{kept} of {len(front['winners'])}"
    assert [row["measured"] for row in front_rows(known)] == [milliseconds(r["measured_ms"]) for r in front["winners"]]


def test_baselines_are_trained_evaluated_and_timed_after_everything_else(
    finished: dict[str, Any], command: Command
) -> None:
    changed = command("run", "baselines=all", "baselines.random=4", "baselines.siblings=[test_resnet]")
    assert _worked(changed) == ["sibling/test_resnet", "baselines", "compared/onnxruntime"]
    sibling = next(command.output.glob("stages/sibling/test_resnet/*/history.jsonl"))
    steps = [
        len(read_lines(next(command.output.glob(f"stages/{name}/*/history.jsonl")))) for name in ("base", "finetune")
    ]
    assert len(read_lines(sibling)) == sum(steps)
    (compared,) = command.output.glob("stages/compared/onnxruntime/*/compared.json")
    found = read_json(compared)
    assert set(found["baselines"]) == {"uniform", "random", "macs", "siblings"}
    fronts = command.output.glob("stages/search/onnxruntime/*/front.json")
    searched = [[row["digest"] for row in read_json(file)["winners"]] for file in fronts]
    assert [row["digest"] for row in found["winners"]] in searched
    assert pages.compared(Compared.read(compared))["within budget"] == percent(found["within_budget"])
    (chosen,) = command.output.glob("stages/baselines/*/baselines.json")
    assert "siblings 1" in pages.baselines(Baselines.read(chosen))["of"]
