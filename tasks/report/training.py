"""Trainings, in a report: losses over steps, accuracies of SubNets of all sizes, and the first training stage.

Histories of a run's trainings become figures. Latency-range accuracies are means over SubNets while they were trained,
by ranges of MACs and of predicted latency. The first of two training stages has accuracies of the backbone and its
SuperNet on the first data, and the cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tailor_ir import SuperNet
from tasks.base.artifacts import RESULT_FILE, read_lines
from tasks.base.pages.text import milliseconds
from tasks.base.schemas import results
from tasks.prediction.latency import LATENCY_FILE, LatencyPredictor
from tasks.report.charts import Rows, blank
from tasks.report.parts import BLUE, GOLD, GREEN, GREY, ORANGE, PINK, PURPLE, RED, TURQUOISE, Row
from tasks.report.sources import PretrainingSources, Sources

if TYPE_CHECKING:
    import plotly.graph_objects as go


def pretraining(sources: PretrainingSources | None) -> Row | None:
    """Results of the stages `pretrain`, `backbone`, `distill` and `join`; None for a run that is trained in one stage."""
    if sources is None:
        return None
    trained = None if sources.trained is None else results.BaseResult.read(sources.trained / RESULT_FILE)
    elastic = results.BackboneResult.read(sources.elastic / RESULT_FILE)
    distilled = results.FinetuneResult.read(sources.distilled / RESULT_FILE)
    joined = results.JoinResult.read(sources.joined / RESULT_FILE)
    first, second = sources.epochs
    times: list[Row] = [
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


def _step(name: str, validation: float | None, test: float | None, on: str = "first", images: int | None = None) -> Row:
    return {"name": name, "on": on, "validation": validation, "test": test, "images": images}


def _ends(found: results.EndsAccuracy, on: str, then: str = "") -> list[Row]:
    """Steps of the largest and the smallest SubNet."""
    return [
        _step(f"largest SubNet{then}", found.largest_validation_accuracy, found.largest_test_accuracy, on),
        _step(f"smallest SubNet{then}", found.smallest_validation_accuracy, found.smallest_test_accuracy, on),
    ]


def _sampled(folder: Path) -> list[Row]:
    """The final mean accuracy of the random SubNets that were evaluated during the training; empty if none were."""
    lines = read_lines(folder / results.RANGE_ACCURACIES_FILE)
    if not lines:
        return []
    last = lines[-1]
    name = f"mean of {len(last['correct'])} random SubNets"
    return [_step(name, mean(last["correct"]) / last["total"], None, images=last["total"])]


RANGES = 4


def range_accuracies(sources: Sources, net: SuperNet) -> Row | None:
    """Range accuracies of the fine-tuning; None if SubNets were not evaluated."""
    folder = sources.finetune
    lines = read_lines(folder / results.RANGE_ACCURACIES_FILE) if folder is not None else []
    if folder is None or not lines:
        return None
    watched = results.WatchedSubNets.read(folder / results.RANGES_FILE)
    shares = np.array([line["correct"] for line in lines]) / lines[0]["total"]
    codes = net.space.encode([dict(one.config) for one in watched.subnets])
    latencies = {
        device.name: LatencyPredictor.load(device.latency / LATENCY_FILE).predict(codes) for device in sources.devices
    }
    return {
        "steps": [line["step"] for line in lines],
        "images": lines[0]["total"],
        "by_macs": _grouped(_by_macs(watched), shares),
        "by_latency": {name: _grouped(_by_latency(found_ms), shares) for name, found_ms in latencies.items()},
    }


def _by_macs(watched: results.WatchedSubNets) -> dict[str, list[int]]:
    """Positions of SubNets by range, named by its bounds."""
    million = [bound / 1e6 for bound in watched.bounds_macs]
    found: dict[str, list[int]] = {}
    for position, one in enumerate(watched.subnets):
        label = f"{million[one.range]:.3g} to {million[one.range + 1]:.3g} M MACs"
        found.setdefault(label, []).append(position)
    return found


def _by_latency(latencies_ms: NDArray[np.float64]) -> dict[str, list[int]]:
    """Positions of SubNets by equal ranges of predicted latency [ms], without empty ranges."""
    bounds_ms = np.linspace(latencies_ms.min(), latencies_ms.max(), RANGES + 1)
    numbers = np.searchsorted(bounds_ms[1:-1], latencies_ms, side="right")
    return {
        f"{milliseconds(bounds_ms[number])} to {milliseconds(bounds_ms[number + 1])}": np.flatnonzero(
            numbers == number
        ).tolist()
        for number in range(RANGES)
        if (numbers == number).any()
    }


def _grouped(positions: Mapping[str, Sequence[int]], shares: NDArray[np.float64]) -> list[Row]:
    return [
        {"label": label, "subnets": len(own), "accuracies": shares[:, own].mean(1).tolist()}
        for label, own in positions.items()
    ]


COLORS = (BLUE, GREEN, ORANGE, PURPLE, RED)
RANGE_COLORS = (GOLD, PINK, TURQUOISE, GREY)
MAX_POINTS = 1000


def figure(rows: Rows, ranges: Row | None = None, score: str = "accuracy") -> go.Figure:
    """Losses over steps (left), at most 1,000 points a curve; mean accuracies of SubNets by range (right)."""
    shown = blank("step", "loss", height=340)
    names = list(dict.fromkeys(name for row in rows for name in row if name.startswith("loss_")))
    if not names or any(
        sum(name.startswith("loss_") for name in row) > 1 for row in rows
    ):  # otherwise the total is the only role's loss
        names.insert(0, "loss")
    thinned = rows[:: max(1, len(rows) // MAX_POINTS)]
    steps = [row["step"] for row in thinned]
    for name, color in zip(names, COLORS, strict=False):
        label = name.removeprefix("loss_").replace("_", " ")
        shown.add_scatter(x=steps, y=[row.get(name) for row in thinned], name=escape(label), mode="lines",
                          line={"color": color, "width": 1.5})  # fmt: skip
    if ranges is not None:
        _add_ranges(shown, ranges, score)
    return shown


def _add_ranges(shown: go.Figure, ranges: Row, score: str) -> None:
    for one, color in zip(ranges["by_macs"], RANGE_COLORS, strict=False):
        shown.add_scatter(
            x=ranges["steps"],
            y=[100 * share for share in one["accuracies"]],
            name=escape(one["label"]),
            yaxis="y2",
            mode="lines+markers",
            line={"color": color, "dash": "dot", "width": 2},
            hovertemplate=f"%{{y:.1f}} % of {one['subnets']} SubNets<extra>{escape(one['label'])}</extra>",
        )
    title = f"mean {score} of SubNets [%]"
    shown.update_layout(yaxis2={"overlaying": "y", "side": "right", "title": title, "showgrid": False})


def histories(sources: Sources) -> dict[str, list[Row]]:
    """The lines of each training of the run, by its name."""
    first = sources.pretraining  # of two training stages
    folders: dict[str, Path | None] = (
        {} if first is None else {"backbone": first.trained, "SuperNet of the backbone": first.distilled}
    )
    folders |= {"base network": sources.base, "fine-tuning": sources.finetune}
    found = {name: read_lines(folder / results.HISTORY_FILE) for name, folder in folders.items() if folder}
    return {name: rows for name, rows in found.items() if rows}
