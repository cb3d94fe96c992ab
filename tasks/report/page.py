"""report.html: one file that works offline; it carries its plotly.js and forbids every network request."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup
from plotly.io import to_html
from plotly.offline import get_plotlyjs

from tasks.pages import environment, style
from tasks.report import charts, text

Row = Mapping[str, Any]
PLOTLY_CONFIG = {
    "displaylogo": False,
    "responsive": True,
    "plotlyServerURL": "",
    "modeBarButtons": [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
}


def render(report: Row) -> str:
    """The whole page. All texts are escaped by the template; figures escape theirs."""

    def architecture(config: Mapping[str, float]) -> list[str]:
        return text.architecture(config, report["supernet"]["variables"])

    templates = environment("tasks.report")
    templates.filters["architecture"] = architecture
    page: str = templates.get_template("page.html").render(
        title=report["model"],
        report=report,
        style=style("tasks.report"),
        plotlyjs=Markup(get_plotlyjs()),
        figures=_figures(report),
    )
    return page


def _figures(report: Row) -> dict[str, Any]:
    variables = report["supernet"]["variables"]
    return {
        "devices": [
            {
                "front": _div(charts.front(device, variables)),
                "errors": _div(charts.latency_errors(device, variables)),
            }
            for device in report["devices"]
        ],
        "sensitivities": _div(charts.sensitivities(report["sensitivities"]["rows"])),
        "training": {name: _div(charts.training(rows)) for name, rows in report["training"].items() if rows},
        "durations": _div(charts.durations(report["stages"])),
    }


def _div(figure: go.Figure) -> Markup:
    return Markup(to_html(figure, full_html=False, include_plotlyjs=False, config=PLOTLY_CONFIG))
