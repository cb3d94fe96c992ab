"""Results of stages, which are JSON, parsed into their schemas, and the numbers of stages and runs as MLflow metrics."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tasks.base.schemas.exports import Exports
from tasks.base.schemas.predictions import AccuracyValidation, LatencyValidation
from tasks.base.schemas.results import BaseResult, FinetuneResult, StreamedNetwork
from tasks.base.schemas.stored import StageResult, Stored
from tasks.base.schemas.winners import Front
from tasks.exits.policies import Policies
from tasks.export.operating_points import Levels
from tasks.measuring.runtime_options.settings import ChosenEngine
from tasks.report.headline import fastest_within, reference

Schema = TypeVar("Schema", bound=Stored)
Answer = TypeVar("Answer")
SECONDS = "seconds"
"""Key of the work's duration [s]: in each result, but not part of its schema."""


def of(schema: type[Schema], tell: Callable[[Schema], Answer]) -> Callable[[StageResult], Answer]:
    """Adapt the function `tell` of a schema to a function of JSON results."""

    def described(result: StageResult) -> Answer:
        return tell(schema.model_validate({name: value for name, value in result.items() if name != SECONDS}))

    return described


Row = Mapping[str, Any]
Series = Mapping[str, Sequence[float]]
"""Metric name -> its values by step."""

NOT_RESULTS = ("device", "settings", "config", "seconds")
"""Parts of a result that are not an outcome of the stage."""


def numbers(result: Row, prefix: str = "") -> dict[str, float]:
    """Every finite number of a result by its dotted name; lists, texts and the device's description are left out."""
    found: dict[str, float] = {}
    for name, value in result.items():
        if not prefix and name in NOT_RESULTS:
            continue
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            found[f"{prefix}{name}"] = float(value)
    return found


def run_metrics(stage: str, device: str, result: StageResult) -> Series:
    """Metrics of a run from a stage; for a device's stage, names are prefixed with the device."""
    found = OF_RUNS[stage](result) if stage in OF_RUNS else {}
    return {f"{device}/{name}" if device else name: values for name, values in found.items()}


def _known(**numbers: float | None) -> Series:
    """Metrics with one value each; unknown values are left out."""
    return {name: [float(value)] for name, value in numbers.items() if value is not None}


def _of_front(result: Front) -> Series:
    replaced = None if result.refinement is None else result.refinement.replaced
    return _known(hypervolume=result.hypervolume.value, replaced_winners=replaced)


def of_exports(result: Exports) -> Series:
    """Metrics of an export; the winners' numbers are series from the tightest to the widest budget."""
    measured = [(row, row.measured_ms) for row in result.winners if row.measured_ms is not None]
    tested = [accuracy for row, _ in measured if (accuracy := row.accuracy.get("test")) is not None]
    return {
        **_known(base_ms=result.largest.latency.p50_ms),
        "winner_budget_ms": [row.budget_ms for row, _ in measured],
        "winner_ms": [measured_ms for _, measured_ms in measured],
        "winner_test_accuracy": tested,
        "best_test_accuracy": [max(tested)] if tested else [],
        "winners_within_budget": [float(sum(row.within_budget for row in result.winners))],
    }


def of_policies(result: Policies) -> Series:
    """Metrics of early exits, for the SubNet with the most accurate early answers."""
    best = result.best
    if best is None or best.tested is None:
        return _known(subnets_with_thresholds=0)
    tested = best.tested
    return _known(
        subnets_with_thresholds=sum(row.thresholds is not None for row in result.subnets),
        early_test_accuracy=tested.accuracy,
        early_lost_points=tested.lost_points,
        early_expected_ms=tested.expected_ms,
        early_p99_ms=tested.p99_ms,
        early_saved=tested.saved,
    )


OF_RUNS: Mapping[str, Callable[[StageResult], Series]] = {
    "base": of(
        BaseResult,
        lambda result: _known(
            base_validation_accuracy=result.validation_accuracy, base_test_accuracy=result.test_accuracy
        ),
    ),
    "runtime_options": of(ChosenEngine, lambda result: _known(engine_speed_up=result.speed_up)),
    "finetune": of(
        FinetuneResult,
        lambda result: _known(
            largest_validation_accuracy=result.largest_validation_accuracy,
            largest_test_accuracy=result.largest_test_accuracy,
            smallest_validation_accuracy=result.smallest_validation_accuracy,
            smallest_test_accuracy=result.smallest_test_accuracy,
        ),
    ),
    "sensitivities": of(
        AccuracyValidation,
        lambda result: _known(
            accuracy_predictor_mean_error_points=result.mean_error_points,
            accuracy_predictor_kendall_tau=result.kendall_tau,
        ),
    ),
    "latency": of(
        LatencyValidation,
        lambda result: _known(
            latency_predictor_median_relative_error=result.held_out.median_relative_error,
            latency_predictor_max_relative_error=result.held_out.max_relative_error,
            latency_predictor_kendall_tau=result.held_out.kendall_tau,
        ),
    ),
    "search": of(Front, _of_front),
    "refine": of(Front, _of_front),
    "stream": of(
        StreamedNetwork,
        lambda result: {f"stream_error_percent.{one.method}": one.window_error_percent for one in result.methods},
    ),
    "exits": of(Policies, of_policies),
    "export": of(Exports, of_exports),
    "front": of(
        Levels,
        lambda result: _known(
            levels=len(result.rows),
            levels_on_front=sum(row.on_front for row in result.rows),
            levels_kept=sum(row.kept for row in result.rows),
        ),
    ),
}
"""Metrics of a whole run, by stage: those of a stream are the errors of each window by method."""


def speed_ups(report: Row, points: float) -> Series:
    """Speed-up over the base model by device, for the fastest winner that loses at most `points` of accuracy."""
    _, accuracy = reference(report)
    found: dict[str, list[float]] = {}
    if accuracy is None:
        return found
    for device in report["devices"]:
        row, base_ms = fastest_within(device, accuracy, points), device["base"]["measured_ms"]
        if row is not None and base_ms is not None:
            found[f"{device['name']}/speed_up"] = [base_ms / row["measured_ms"]]
    return found
