"""nights.html: the latest night against the one before, and trends over all nights; one file that works offline."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from statistics import median

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from tasks.base.pages import environment, style
from tasks.base.pages.text import milliseconds
from tasks.measuring.lut.entry import TableDifference
from tasks.operations.nightly.comparison import NightComparison
from tasks.operations.nightly.noise import typical_ms
from tasks.operations.nightly.records import DeviceNight, Finding, Night, StageChange
from tasks.report.charts import COLORS, blank
from tasks.report.page import PLOTLY_CONFIG
from tasks.report.parts import RED

PAGE_FILE = "nights.html"
PACKAGE = "tasks.operations.nightly"
LOOKS = "tasks.report"
"""Package that has the page's style."""
SHOWN = 30
"""Number of findings and stages that are listed."""
NightValue = Callable[[Night, str], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """Content of the page on the latest night. changed: lines on inputs; tables: of devices measured again."""

    night: Night
    comparison: NightComparison
    changed: Sequence[str]
    stages: Sequence[StageChange]
    tables: Mapping[str, TableDifference]


def render(nights: Sequence[Night], report: NightReport) -> str:
    """The whole page. nights: all, the latest last. All texts are escaped by the template; figures escape theirs."""
    page: str = (
        environment(PACKAGE)
        .get_template("page.html")
        .render(
            title=f"{report.night.network}: nights",
            style=style(LOOKS),
            plotlyjs=Markup(get_plotlyjs()),
            night=report.night,
            when=when,
            report=report,
            findings=[(finding, change_of(finding)) for finding in report.night.findings],
            rows=device_rows(report),
            shown=SHOWN,
            figures=[_div(_trend(nights, title, value)) for title, value in TRENDS],
            nights=len(nights),
        )
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
        ratio = one.at_equal_accuracy
        rows.append(
            {
                "device": name,
                "area under the front": "–" if one.areas is None else f"{one.areas[0]:.4f} → {one.areas[1]:.4f}",
                "latency at equal accuracy": (
                    "–" if ratio is None else f"{ratio[0]:.3f} × ({ratio[1]:.3f} to {ratio[2]:.3f})"
                ),
                "timed again": str(one.timed),
                "slower": str(one.slower),
                "faster": str(one.faster),
                "tolerated": f"{100 * one.tolerated:.1f} %",
                "median error of latencies": " → ".join(
                    "–" if error is None else f"{error:.1f} %" for error in one.latency_errors
                ),
                "notes": "; ".join(one.notes),
            }
        )
    return rows


def _ms(device: DeviceNight, digest: str) -> float | None:
    rounds = next((one.rounds_ms for one in device.times.subnets if one.digest == digest), ())
    return typical_ms(rounds) if rounds else None


def _largest(night: Night, name: str) -> float | None:
    device = night.devices[name]
    return _ms(device, device.times.largest)


def _operators(night: Night, name: str) -> float | None:
    """Sum over the timed operators."""
    times = [typical_ms(one.rounds_ms) for one in night.devices[name].times.operators if one.rounds_ms]
    return math.fsum(times) if times else None


def _best(night: Night, name: str) -> float | None:
    """Best accuracy of the winners [%]."""
    known = [one.accuracy for one in night.devices[name].times.subnets if one.accuracy is not None]
    return 100 * max(known) if known else None


def _fastest(night: Night, name: str) -> float | None:
    known = [typical_ms(one.rounds_ms) for one in night.devices[name].times.subnets if one.rounds_ms]
    return min(known) if known else None


def _error(night: Night, name: str) -> float | None:
    errors = list(night.devices[name].latency_errors.values())
    return 100 * median(errors) if errors else None


TRENDS: Sequence[tuple[str, NightValue]] = (
    ("largest SubNet [ms]", _largest),
    ("fastest winner [ms]", _fastest),
    ("best test accuracy of the winners [%]", _best),
    ("operators that are timed, sum [ms]", _operators),
    ("median error of latencies on held-out SubNets [%]", _error),
)
"""Values drawn over the nights, one line per device."""


def _trend(nights: Sequence[Night], title: str, value: NightValue) -> go.Figure:
    figure = blank("night", title, height=320)
    for place, name in enumerate(dict.fromkeys(name for night in nights for name in night.devices)):
        known = [(night, found) for night in nights if name in night.devices and (found := value(night, name))]
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
    return figure


def _div(figure: go.Figure) -> Markup:
    return Markup(to_html(figure, full_html=False, include_plotlyjs=False, config=PLOTLY_CONFIG))
