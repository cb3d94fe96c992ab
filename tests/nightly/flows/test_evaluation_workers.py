"""A run whose SubNets other processes evaluate: every stage that evaluates hands them over, and bad workers end it first."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.pipeline.workers.cluster import DaskWorkers
from tailor_ir import Config, SuperNet
from tasks.evaluation.subnets import EvaluationData, FinishedSubNets, evaluations
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import TINY
from tests.support.ports import refusing_port


def test_predictors_candidates_and_exports_are_evaluated_by_workers(
    finished: dict[str, Any], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated, handed = DaskWorkers.evaluated, list[tuple[str, int]]()

    def recorded(
        workers: DaskWorkers, net: SuperNet, configs: Mapping[str, Config], data: EvaluationData
    ) -> Generator[FinishedSubNets, None, None]:
        if configs:
            handed.append((data.recipe.split, len(configs)))
        return evaluated(workers, net, configs, data)

    budgets_ms = [1.01 * row["predicted_ms"] for row in finished["devices"][0]["winners"][::6]]
    changes = ("predict.recalibration_images=48", "refine.candidates=2", f"search.budgets_ms={budgets_ms}")
    here = command("predict", *changes)["stages"][0]
    with monkeypatch.context() as patch:
        patch.setattr(DaskWorkers, "evaluated", recorded)
        patch.setattr(evaluations, "evaluated_here", None)
        assert command("predict", *changes, "evaluate.workers=1")["stages"][0]["cached"], "in no key"
        command("export", *changes, "predict.validation_images=48", "evaluate.workers=1")
    (sensitivities, checked, *others), exported = (
        [count for split, count in handed if split == of] for of in ("validation", "test")
    )
    assert sensitivities > checked > 0
    assert len(others) >= 2, "candidates, and winners on the whole split"
    assert sum(exported) > 0
    assert here["result"]["samples"] == 64


def test_a_scheduler_that_is_not_there_ends_the_command_before_anything_is_worked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refusing_port() as port:
        workers = f"evaluate.workers=dask://127.0.0.1:{port}"
        words = [*TINY, f"output_dir={tmp_path}/out", f"tracking.uri=sqlite:///{tmp_path}/mlflow.db"]
        assert main(["predict", *words, workers]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{workers}: no scheduler answers" in line
    assert line.endswith("or evaluate.workers=null evaluates in this process")
    assert not (tmp_path / "out" / "stages").exists()


def test_other_words_for_workers_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *TINY, "evaluate.workers=ray://127.0.0.1:1"]) == 2
    assert "evaluate: workers=ray://127.0.0.1:1; allowed: null, a number of processes" in capsys.readouterr().err
