"""Trainings in the report: losses by role, and accuracies of SubNets by ranges of MACs and of each device's latency."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailor_ir
from tasks.artifacts import append_line, write_json
from tasks.finetune.ranges import choose
from tasks.predict.latency import LatencyPredictor
from tasks.predict.validate import LATENCY_FILE
from tasks.report import Settings, Sources, training
from tasks.report.gather import gather
from tasks.report.page import MOST_STEPS, render
from tasks.schemas.results import RANGE_ACCURACIES_FILE, RANGES_FILE, FinetuneResult, WatchedSubNets

STEPS = [10 * number for number in range(1, 9)]
TOTAL = 200


@pytest.fixture(scope="module")
def trained(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """The run with a fine-tuning in two phases, in which SubNets with more MACs are better, and all become better."""
    folder = tmp_path_factory.mktemp("finetuned")
    watched = choose(tailor_ir.load(sources.supernet), 12, seed=0)
    watched.write(folder / RANGES_FILE)
    order = np.argsort(np.argsort([one.macs for one in watched.subnets]))
    for step in range(1, STEPS[-1] + 1):
        name = "loss_branches" if step <= 40 else "loss_tune"
        append_line(folder / "history.jsonl", {"step": step, "epoch": 0, "loss": 1 / step, name: 1 / step})
    for step in STEPS:
        correct = [int(place) + step for place in order]
        append_line(folder / RANGE_ACCURACIES_FILE, {"step": step, "correct": correct, "total": TOTAL})
    ends = {f"{end}_{split}_accuracy": 0.5 for end in ("largest", "smallest") for split in ("validation", "test")}
    result = FinetuneResult.model_validate({"strategy": "branches,tune", "steps": STEPS[-1], "micro_batch": 32, **ends})
    write_json(folder / "result.json", result.to_json())
    return replace(sources, finetune=folder)


@pytest.fixture(scope="module")
def report(trained: Sources) -> dict[str, Any]:
    return gather(trained, Settings())


def test_the_same_subnets_are_grouped_by_macs_and_by_each_devices_latency(
    trained: Sources, report: dict[str, Any]
) -> None:
    found = report["ranges"]
    assert found["steps"] == STEPS
    assert found["images"] == TOTAL
    assert trained.finetune is not None
    watched = WatchedSubNets.read(trained.finetune / RANGES_FILE)
    for rows in (found["by_macs"], found["by_latency"]["here"]):
        assert sum(row["subnets"] for row in rows) == len(watched.subnets)
        assert all(len(row["accuracies"]) == len(STEPS) for row in rows)
        last = [row["accuracies"][-1] for row in rows]
        assert all(first["accuracies"][-1] > first["accuracies"][0] for first in rows)
        weights = [row["subnets"] for row in rows]
        expected = (STEPS[-1] + (len(watched.subnets) - 1) / 2) / TOTAL
        assert np.average(last, weights=weights) == pytest.approx(expected)
    by_macs = [row["accuracies"][-1] for row in found["by_macs"]]
    assert by_macs == sorted(by_macs)


def test_ranges_of_latency_are_equal_and_hold_the_predictions(trained: Sources, report: dict[str, Any]) -> None:
    (device,) = trained.devices
    assert trained.finetune is not None
    net = tailor_ir.load(trained.supernet)
    configs = [dict(one.config) for one in WatchedSubNets.read(trained.finetune / RANGES_FILE).subnets]
    predicted_ms = LatencyPredictor.load(device.latency / LATENCY_FILE).predict(net.space.encode(configs))
    counts, _ = np.histogram(predicted_ms, np.linspace(predicted_ms.min(), predicted_ms.max(), 5))
    assert [row["subnets"] for row in report["ranges"]["by_latency"]["here"]] == [one for one in counts if one]


def test_the_chart_has_a_line_for_each_phase_and_each_range(report: dict[str, Any]) -> None:
    rows = report["training"]["fine-tuning"]
    traces = {trace.name: trace for trace in training.figure(rows, report["ranges"]).data}
    labels = [row["label"] for row in report["ranges"]["by_macs"]]
    assert list(traces) == ["branches", "tune", *labels]
    assert [value is None for value in traces["tune"].y] == [row["step"] <= 40 for row in rows]
    assert list(traces[labels[-1]].x) == STEPS
    assert list(traces[labels[-1]].y) == [100 * one for one in report["ranges"]["by_macs"][-1]["accuracies"]]
    assert traces[labels[-1]].yaxis == "y2"


def test_a_mean_over_several_roles_has_a_line_of_its_own() -> None:
    rows = [{"step": 1, "loss": 2.0, "loss_largest": 1.0, "loss_random": 3.0}]
    assert [trace.name for trace in training.figure(rows).data] == ["loss", "largest", "random"]
    assert [trace.name for trace in training.figure([{"step": 1, "loss": 2.0}]).data] == ["loss"]


def test_the_page_has_a_table_of_at_most_so_many_steps(report: dict[str, Any]) -> None:
    page = render(report)
    assert "Latency-range accuracy" in page
    table = page[page.index('<table class="ranges">') :].partition("</table>")[0]
    shown = [step for step in STEPS if f"<th>step {step}</th>" in table]
    assert len(shown) == MOST_STEPS
    assert {STEPS[0], STEPS[-1]} <= set(shown)
    rows = [*report["ranges"]["by_macs"], *report["ranges"]["by_latency"]["here"]]
    assert table.count("<tr>") == 1 + len(rows)
    assert all(row["label"] in table for row in rows)


def test_a_run_without_evaluations_has_no_ranges(sources: Sources, tmp_path: Path) -> None:
    report = gather(sources, Settings())
    assert report["ranges"] is None
    assert "Latency-range accuracy" not in render(report)
