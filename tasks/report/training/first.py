"""The first of two training stages: accuracies of the backbone and its SuperNet on the first data, and the cost."""

from pathlib import Path
from statistics import mean
from typing import TypedDict

from tasks.base.artifacts import RESULT_FILE, read_lines
from tasks.base.schemas.results import (
    RANGE_ACCURACIES_FILE,
    BackboneResult,
    BaseResult,
    EndsAccuracy,
    FinetuneResult,
    JoinResult,
)
from tasks.report.sources import PretrainingSources


class ReportedStep(TypedDict):
    """The state of one network at the end of a stage: accuracies in [0, 1], None if unknown.
    on: "first" or "second" data. images: number of evaluated validation images; None: all.
    """

    name: str
    on: str
    validation: float | None
    test: float | None
    images: int | None


class ReportedTime(TypedDict):
    """Cost of a stage. epochs: None: it does not train; seconds: None if they were not counted."""

    stage: str
    epochs: int | None
    seconds: float | None


class ReportedPretraining(TypedDict):
    """The backbone, by its path, on first `data`. variables, distinct: of its SuperNet; distinct SubNets as text."""

    backbone: str
    data: str
    variables: int
    distinct: str
    strategy: str
    steps: list[ReportedStep]
    times: list[ReportedTime]


def pretraining(sources: PretrainingSources | None) -> ReportedPretraining | None:
    """Results of the stages `pretrain`, `backbone`, `distill` and `join`; None for a run that is trained in one stage."""
    if sources is None:
        return None
    trained = None if sources.trained is None else BaseResult.read(sources.trained / RESULT_FILE)
    elastic = BackboneResult.read(sources.elastic / RESULT_FILE)
    distilled = FinetuneResult.read(sources.distilled / RESULT_FILE)
    joined = JoinResult.read(sources.joined / RESULT_FILE)
    first, second = sources.epochs
    times: list[ReportedTime] = [
        {"stage": "backbone", "epochs": None, "seconds": elastic.seconds},
        {"stage": "distill", "epochs": second, "seconds": distilled.seconds},
        {"stage": "join", "epochs": None, "seconds": joined.seconds},
    ]
    steps = [
        _step("largest SubNet, before it is trained", elastic.validation_accuracy, None),
        *_ends(distilled, "first"),
        *_sampled(sources.distilled),
        *_ends(joined, "second", ", joined"),
    ]
    if trained is not None:
        times.insert(0, {"stage": "pretrain", "epochs": first, "seconds": trained.seconds})
        steps.insert(0, _step("backbone, as a classifier", trained.validation_accuracy, trained.test_accuracy))
    return {
        "backbone": sources.part,
        "data": sources.data,
        "variables": elastic.variables,
        "distinct": str(elastic.distinct),
        "strategy": distilled.strategy,
        "steps": steps,
        "times": times,
    }


def _step(
    name: str, validation: float | None, test: float | None, on: str = "first", images: int | None = None
) -> ReportedStep:
    return {"name": name, "on": on, "validation": validation, "test": test, "images": images}


def _ends(found: EndsAccuracy, on: str, then: str = "") -> list[ReportedStep]:
    """Steps of the largest and the smallest SubNet."""
    return [
        _step(f"largest SubNet{then}", found.largest_validation_accuracy, found.largest_test_accuracy, on),
        _step(f"smallest SubNet{then}", found.smallest_validation_accuracy, found.smallest_test_accuracy, on),
    ]


def _sampled(folder: Path) -> list[ReportedStep]:
    """The final mean accuracy of the random SubNets that were evaluated during the training; empty if none were."""
    lines = read_lines(folder / RANGE_ACCURACIES_FILE)
    if not lines:
        return []
    last = lines[-1]
    name = f"mean of {len(last['correct'])} random SubNets"
    return [_step(name, mean(last["correct"]) / last["total"], None, images=last["total"])]
