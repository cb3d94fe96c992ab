"""nights.html: the latest night against the one before, and trends over all nights; one file that works offline."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from statistics import median
from typing import Any

from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from tasks.base.pages import environment, style
from tasks.base.pages.text import milliseconds
from tasks.operations.nightly.comparison import NightComparison
from tasks.operations.nightly.noise import typical_ms
from tasks.operations.nightly.records import DeviceNight, Finding, Night, OperatorRounds, StageChange, SubNetRounds
from tasks.report.charts import COLORS, blank
from tasks.report.page import PLOTLY_CONFIG
from tasks.report.parts import RED

PAGE_FILE = "nights.html"
PACKAGE = "tasks.operations.nightly"
LOOKS = "tasks.report"
"""Package that has the page's style."""
SHOWN = 30
"""Number of findings and stages that are listed."""
DeviceValues = Callable[[DeviceNight], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """Content of the page on the latest night. changed: lines on inputs; tables: of devices measured again."""

    night: Night
    comparison: NightComparison
    changed: Sequence[str]
    stages: Sequence[StageChange]
    tables: Mapping[str, Mapping[str, Any]]


def render(nights: Sequence[Night], report: NightReport) -> str:
    """The whole page. nights: all, the latest last. All texts are escaped by the template; figures escape theirs."""
    template = environment(PACKAGE).get_template("page.html")
    page: str = template.render(
        title=f"{report.night.network}: nights",
        style=style(LOOKS),
        plotlyjs=Markup(get_plotlyjs()),
        night=report.night,
        when=when,
        report=report,
        findings=[(finding, change_of(finding)) for finding in report.night.findings],
        rows=device_rows(report),
        shown=SHOWN,
        figures=[_trend(nights, title, values, summary) for title, values, summary in TRENDS],
        nights=len(nights),
    )
    return page


def when(began: str) -> str:
    """The time at which a night began, for people."""
    return f"{datetime.fromisoformat(began):%Y-%m-%d %H:%M} UTC"


def change_of(finding: Finding) -> str:
    """`1.2 ms → 1.5 ms`, with the ratio of latencies."""
    before, now = finding.before, finding.now
    if finding.unit == "ms":
        ratio = f" ({now / before:.2f} ×)" if before and now else ""
        return f"{milliseconds(before)} → {milliseconds(now)}{ratio}"
    digits = 3 if finding.unit == "area" else 2
    unit = "" if finding.unit == "area" else f" {finding.unit}"
    return " → ".join("–" if one is None else f"{one:.{digits}f}{unit}" for one in (before, now))


def device_rows(report: NightReport) -> list[dict[str, str]]:
    """A row of texts for each device that both nights have."""
    rows = []
    for name, one in report.comparison.devices.items():
        areas, ratio = one.areas, one.at_equal_accuracy
        errors = ("–" if error is None else f"{error:.1f} %" for error in one.latency_errors)
        row = {
            "device": name,
            "area under the front": f"{areas[0]:.4f} → {areas[1]:.4f}" if areas else "–",
            "latency at equal accuracy": f"{ratio[0]:.3f} × ({ratio[1]:.3f} to {ratio[2]:.3f})" if ratio else "–",
            "timed again": str(one.timed),
            "slower": str(one.slower),
            "faster": str(one.faster),
            "tolerated": f"{100 * one.tolerated:.1f} %",
            "median error of latencies": " → ".join(errors),
            "notes": "; ".join(one.notes),
        }
        rows.append(row)
    return rows


def _typical_ms(rounds: Iterable[OperatorRounds | SubNetRounds]) -> list[float]:
    return [typical_ms(one.rounds_ms) for one in rounds if one.rounds_ms]


TRENDS: Sequence[tuple[str, DeviceValues, Callable[[list[float]], float]]] = (
    (
        "largest SubNet [ms]",
        lambda device: _typical_ms(one for one in device.times.subnets if one.digest == device.times.largest),
        min,
    ),
    ("fastest winner [ms]", lambda device: _typical_ms(device.times.subnets), min),
    (
        "best test accuracy of the winners [%]",
        lambda device: [one.accuracy for one in device.times.subnets if one.accuracy is not None],
        lambda known: 100 * max(known),
    ),
    ("operators that are timed, sum [ms]", lambda device: _typical_ms(device.times.operators), math.fsum),
    (
        "median error of latencies on held-out SubNets [%]",
        lambda device: list(device.latency_errors.values()),
        lambda known: 100 * median(known),
    ),
)
"""The values drawn over the nights, one line per device: their source in a device's night, and their summary."""


def _trend(
    nights: Sequence[Night], title: str, values: DeviceValues, summary: Callable[[list[float]], float]
) -> Markup:
    figure = blank("night", title, height=320)
    for place, name in enumerate(dict.fromkeys(name for night in nights for name in night.devices)):
        devices = [(night, values(night.devices[name])) for night in nights if name in night.devices]
        known = [(night, found) for night, own in devices if own and (found := summary(own))]
        worse = [any(finding.device == name for finding in night.findings) for night, _ in known]
        color = COLORS[place % len(COLORS)]
        figure.add_scatter(
            x=[night.began for night, _ in known],
            y=[found for _, found in known],
            name=escape(name),
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"size": [13 if one else 7 for one in worse], "color": [RED if one else color for one in worse]},
            text=["regressed" if one else "" for one in worse],
            hovertemplate="%{x|%Y-%m-%d %H:%M}: %{y:.4g} %{text}<extra></extra>",
        )
    figure.update_xaxes(type="date")
    return Markup(to_html(figure, full_html=False, include_plotlyjs=False, config=PLOTLY_CONFIG))
