"""Numbers of stages and runs, as metrics of MLflow."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.report.headline import fastest_within, reference

Row = Mapping[str, Any]
Series = Mapping[str, Sequence[float]]
"""Metric name -> its values by step."""

OF_RUNS: Mapping[str, Mapping[str, str]] = {
    "base": {
        "base_validation_accuracy": "validation_accuracy",
        "base_test_accuracy": "test_accuracy",
    },
    "finetune": {
        "largest_validation_accuracy": "largest_validation_accuracy",
        "largest_test_accuracy": "largest_test_accuracy",
        "smallest_validation_accuracy": "smallest_validation_accuracy",
        "smallest_test_accuracy": "smallest_test_accuracy",
    },
    "sensitivities": {
        "accuracy_predictor_mean_error_points": "mean_error_points",
        "accuracy_predictor_kendall_tau": "kendall_tau",
    },
    "latency": {
        "latency_predictor_median_relative_error": "held_out.median_relative_error",
        "latency_predictor_max_relative_error": "held_out.max_relative_error",
        "latency_predictor_kendall_tau": "held_out.kendall_tau",
    },
    "search": {"hypervolume": "hypervolume.value"},
    "refine": {"hypervolume": "hypervolume.value", "replaced_winners": "refinement.replaced"},
    "export": {"base_ms": "largest.latency.p50_ms"},
}
"""Metrics of a whole run, by stage: name, and where the stage's result has it. Those of a device begin with its name."""
NOT_RESULTS = ("device", "settings", "config", "seconds")
"""Parts of a result that are no outcome of the stage."""


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


def run_metrics(stage: str, device: str, result: Row) -> Series:
    """Metrics of a run from a stage; the winners' numbers are a series from the tightest budget to the widest."""
    known = numbers(result)
    found = {name: [known[source]] for name, source in OF_RUNS.get(stage, {}).items() if source in known}
    if stage == "export":
        found |= _winners(result["winners"])
    return {f"{device}/{name}" if device else name: values for name, values in found.items()}


def _winners(rows: Sequence[Row]) -> dict[str, list[float]]:
    measured = [row for row in rows if row["measured_ms"] is not None]
    found = {
        "winner_budget_ms": [row["budget_ms"] for row in measured],
        "winner_ms": [row["measured_ms"] for row in measured],
    }
    tested = [row["accuracy"]["test"] for row in measured if row["accuracy"] and row["accuracy"]["test"] is not None]
    found["winner_test_accuracy"] = tested
    found["best_test_accuracy"] = [max(tested)] if tested else []
    found["winners_within_budget"] = [float(sum(bool(row["within_budget"]) for row in rows))]
    return found


def speed_ups(report: Row, points: float) -> Series:
    """By device, how much faster than the base model the fastest winner is that is as accurate but for so many points."""
    _, accuracy = reference(report)
    rows = _fast(report["devices"], accuracy, points) if accuracy is not None else ()
    return {f"{name}/speed_up": [ratio] for name, ratio in rows}


def _fast(devices: Sequence[Row], accuracy: float, points: float) -> Iterator[tuple[str, float]]:
    for device in devices:
        row, base_ms = fastest_within(device, accuracy, points), device["base"]["measured_ms"]
        if row is not None and base_ms is not None:
            yield device["name"], base_ms / row["measured_ms"]
