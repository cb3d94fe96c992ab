"""report.html: one file that works offline; it includes plotly.js and forbids every network request."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from tasks.base.pages import environment, script, style
from tasks.base.pages.text import milliseconds, percent
from tasks.base.schemas.placed import PartitionAnswer
from tasks.base.schemas.predictions import Uncertainty
from tasks.evaluation.uncertainty import predicted, uncertain
from tasks.report import baselines, charts, confusions, leaving, levels, parts, streams, training
from tasks.report.headline import fastest_within, idle, kept, reference, unkept
from tasks.report.partition import sections
from tasks.report.parts import Row

PLOTLY_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "plotlyServerURL": "",
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}


PACKAGE = "tasks.report"
OPERATOR = ("title", "family", "input", "output", "macs", "parameters", "predicted_ms")
DIGITS = 7
MOST_STEPS = 6
"""Largest number of columns of the table of accuracies by range."""


def render(report: Row) -> str:
    """The whole page. All texts are escaped by the template; figures escape their own."""
    pages = environment(PACKAGE)
    pages.filters |= {
        "uncertain": uncertain,
        "predicted": lambda share, known: predicted(share, Uncertainty.model_validate(known)),
    }
    partition, ranges = report["partition"], report["ranges"]
    page: str = pages.get_template("page.html").render(
        title=report["model"],
        report=report,
        style=style(PACKAGE),
        plotlyjs=Markup(get_plotlyjs()),
        figures=_figures(report),
        partition=None if partition is None else sections(PartitionAnswer.of_json(partition, "report")),
        baseline_title=baselines.title,
        baseline_cells=baselines.cells,
        engine_rows=parts.rows,
        kept=[kept(device) for device in report["devices"]],
        unkept=[unkept(device) for device in report["devices"]],
        idle=[idle(device) for device in report["devices"]],
        subnets=[_subnets(device) for device in report["devices"]],
        chosen=[_chosen(report, device) for device in report["devices"]],
        breakdowns=[_for_script(device["breakdown"]) for device in report["devices"]],
        range_rows=[("MACs", ranges["by_macs"]), *ranges["by_latency"].items()] if ranges else [],
        range_steps=_shown_steps(ranges),
        script=script(PACKAGE, "layers.js"),
        most_variables=charts.MAX_BARS,
    )
    return page


def _for_script(breakdown: Row) -> Row:
    """The breakdown for the page's script, in few bytes: operators as rows in the order of `OPERATOR`."""

    def cell(operator: Row, name: str) -> Any:
        value = operator[name]
        return value if name != "predicted_ms" or value is None else float(f"{value:.{DIGITS}g}")

    return {
        **breakdown,
        "operators": [[cell(operator, name) for name in OPERATOR] for operator in breakdown["operators"]],
        "subnets": {
            digest: {name: value for name, value in subnet.items() if name != "architecture"}
            for digest, subnet in breakdown["subnets"].items()
        },
    }


def _subnets(device: Row) -> dict[str, dict[str, str]]:
    """Kinds of SubNets -> digest -> its label in the list to choose from."""
    winners = {row["digest"]: f"budget {milliseconds(row['budget_ms'])}" for row in reversed(device["winners"])}
    kinds: dict[str, Mapping[str, str]] = {
        "base model": {device["base"]["digest"]: "all at their largest"},
        "winners": dict(reversed(winners.items())),
        "uniformly shrunk": {row["digest"]: row["scaled"] for row in device["baseline"]},
        "random": {row["digest"]: row["kind"] for row in device["random"]},
    }
    rows = {row["digest"]: row for row in (*device["random"], *device["baseline"], *device["winners"], device["base"])}
    named: set[str] = set()
    found: dict[str, dict[str, str]] = {}
    for kind, names in kinds.items():
        fresh = [digest for digest in names if digest not in named]
        named |= set(fresh)
        if fresh:
            found[kind] = {digest: _label(names[digest], rows[digest]) for digest in fresh}
    return found


def _label(name: str, row: Row) -> str:
    facts = [name]
    if row.get("measured_ms"):
        facts.append(milliseconds(row["measured_ms"]))
    if row.get("accuracy") is not None:
        facts.append(percent(row["accuracy"]))
    return ", ".join(facts)


def _chosen(report: Row, device: Row) -> str:
    """Digest of the SubNet whose layers are shown first: the headline's SubNet, or the base model."""
    accuracy = reference(report)[1]
    row = None if accuracy is None else fastest_within(device, accuracy, report["settings"]["accuracy_points"])
    digest: str = (row or device["base"])["digest"]
    return digest


def _figures(report: Row) -> Row:
    devices, ranges = report["devices"], {"fine-tuning": report["ranges"]}
    return {
        "fronts": _div(charts.fronts(devices), "fronts") if len(devices) > 1 else None,
        "devices": [
            {
                "front": _div(charts.front(device), f"front-{number}"),
                "latency": _div(charts.latency_errors(device), f"latency-{number}"),
                "accuracy": _div(charts.accuracy_errors(device), f"accuracy-{number}"),
                "candidates": _div(charts.candidates(device), f"candidates-{number}") if device["refinement"] else None,
                **_leaving(device, number),
                "levels": _div(levels.figure(device["levels"]), f"levels-{number}") if device["levels"] else None,
            }
            for number, device in enumerate(devices)
        ],
        "confusions": [_div(confusions.figure(row), f"confusions-{at}") for at, row in enumerate(report["confusions"])],
        "sensitivities": _div(charts.sensitivities(report["sensitivities"]["rows"], report["score"])),
        "training": {
            name: _div(training.figure(own, ranges.get(name), report["score"]))
            for name, own in report["training"].items()
            if own
        },
        "streams": [_div(streams.figure(row), f"stream-{number}") for number, row in enumerate(report["streams"])],
        "durations": _div(charts.durations(report["stages"])),
    }


def _leaving(device: Row, number: int) -> dict[str, Markup]:
    """The figures of the SubNet whose exits are shown in detail."""
    found = device["policies"] or {"best": None, "subnets": []}
    return {
        name: _div(figure(row), f"{name}-{number}")
        for row in found["subnets"]
        if row["digest"] == found["best"]
        for name, figure in (("shares", leaving.shares), ("leaving", leaving.latencies))
    }


def _shown_steps(ranges: Row | None) -> list[int]:
    """Positions of at most `MOST_STEPS` evaluations, evenly spaced, with the first and the last."""
    count = 0 if ranges is None else len(ranges["steps"])
    shown = min(count, MOST_STEPS)
    return [round(index * (count - 1) / max(1, shown - 1)) for index in range(shown)]


def _div(figure: go.Figure, name: str | None = None) -> Markup:
    return Markup(to_html(figure, full_html=False, include_plotlyjs=False, config=PLOTLY_CONFIG, div_id=name))
