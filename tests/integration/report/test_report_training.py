"""Trainings in the report: losses by role, and accuracies of SubNets by ranges of MACs and of each device's latency."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailor_ir
from tasks.base.artifacts import append_line, write_json
from tasks.base.schemas.results import (
    RANGE_ACCURACIES_FILE,
    RANGES_FILE,
    BackboneResult,
    BaseResult,
    FinetuneResult,
    JoinResult,
    WatchedSubNets,
)
from tasks.prediction.latency import LATENCY_FILE, LatencyPredictor
from tasks.report import PretrainingSources, Settings, Sources, training
from tasks.report.gather import gather
from tasks.report.page import MOST_STEPS, render
from tasks.training.finetune.ranges import choose

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


ENDS = {
    "largest_validation_accuracy": 0.91,
    "smallest_validation_accuracy": 0.62,
    "largest_test_accuracy": 0.9,
    "smallest_test_accuracy": 0.61,
}


@pytest.fixture(scope="module")
def pretrained(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> PretrainingSources:
    """The folders of a first stage of training, each with the result of its stage."""
    root = tmp_path_factory.mktemp("first")
    results = {
        "pretrain": BaseResult(trained=True, validation_accuracy=0.8, test_accuracy=0.79, seconds=61.25),
        "backbone": BackboneResult(variables=7, distinct=10**18, shared_tensors=5, validation_accuracy=0.77, seconds=2),
        "distill": FinetuneResult.model_validate(
            {"strategy": "sandwich", "steps": 40, "micro_batch": 16, "seconds": 30.5, **ENDS}
        ),
        "join": JoinResult.model_validate(
            {"tensors": 5, "moved": True, "seconds": 1.5, **{name: share / 2 for name, share in ENDS.items()}}
        ),
    }
    for stage, result in results.items():
        (root / stage).mkdir()
        write_json(root / stage / "result.json", result.to_json())
        append_line(root / stage / "history.jsonl", {"step": 1, "epoch": 0, "loss": 2.0})
    for step in (20, 40):
        append_line(
            root / "distill" / RANGE_ACCURACIES_FILE, {"step": step, "correct": [step, 2 * step], "total": TOTAL}
        )
    return PretrainingSources(
        part="body",
        data="glyphs",
        trained=root / "pretrain",
        elastic=root / "backbone",
        distilled=root / "distill",
        joined=root / "join",
        epochs=(6, 2),
    )


def test_the_first_of_two_stages_is_told_with_what_it_came_to(sources: Sources, pretrained: PretrainingSources) -> None:
    report = gather(replace(sources, pretraining=pretrained), Settings())
    found = report["pretraining"]
    assert [(row["stage"], row["epochs"], row["seconds"]) for row in found["times"]] == [
        ("pretrain", 6, 61.25),
        ("backbone", None, 2.0),
        ("distill", 2, 30.5),
        ("join", None, 1.5),
    ]
    steps = {row["name"]: (row["on"], row["validation"], row["test"], row["images"]) for row in found["steps"]}
    assert steps == {
        "backbone, as a classifier": ("first", 0.8, 0.79, None),
        "largest SubNet, before it is trained": ("first", 0.77, None, None),
        "largest SubNet": ("first", 0.91, 0.9, None),
        "smallest SubNet": ("first", 0.62, 0.61, None),
        "mean of 2 random SubNets": ("first", 60 / TOTAL, None, TOTAL),
        "largest SubNet, joined": ("second", 0.455, 0.45, None),
        "smallest SubNet, joined": ("second", 0.31, 0.305, None),
    }
    assert list(report["training"]) == ["backbone", "SuperNet of the backbone", "base network"]
    page = render(report)
    section = page[page.index("First stage of training") :].partition("</section>")[0]
    assert "<td>smallest SubNet</td><td>glyphs</td><td>62.0 %</td><td>61.0 %</td>" in section
    assert "<td>30.0 % of 200 images</td>" in section
    assert "<td>pretrain</td><td>6</td><td>61.2 s</td>" in section
    assert "1.00e18 different SubNets" in section


def test_a_backbone_that_had_weights_and_a_training_without_random_subnets_have_no_rows(
    sources: Sources, pretrained: PretrainingSources, tmp_path: Path
) -> None:
    write_json(tmp_path / "result.json", FinetuneResult.read(pretrained.distilled / "result.json").to_json())
    first = replace(pretrained, trained=None, distilled=tmp_path)
    report = gather(replace(sources, pretraining=first), Settings())
    names = [row["name"] for row in report["pretraining"]["steps"]]
    assert names[0] == "largest SubNet, before it is trained"
    assert not any(name.startswith("mean of") for name in names)
    assert report["pretraining"]["times"][0]["stage"] == "backbone"
    alone = gather(sources, Settings())
    assert alone["pretraining"] is None
    assert "First stage of training" not in render(alone)
