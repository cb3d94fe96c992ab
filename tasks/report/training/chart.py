"""The figure of a training."""

from html import escape

import plotly.graph_objects as go

from tasks.report.charts import Rows, blank
from tasks.report.looks import BLUE, GOLD, GREEN, GREY, ORANGE, PINK, PURPLE, RED, TURQUOISE, Row
from tasks.report.training.ranges import ReportedRanges

COLORS = (BLUE, GREEN, ORANGE, PURPLE, RED)
RANGE_COLORS = (GOLD, PINK, TURQUOISE, GREY)
MAX_POINTS = 1000


def figure(rows: Rows, ranges: ReportedRanges | None = None, score: str = "accuracy") -> go.Figure:
    """Losses over steps (left), at most 1,000 points a curve; mean accuracies of SubNets by range (right)."""
    shown = blank("step", "loss", height=340)
    names = list(dict.fromkeys(name for row in rows for name in row if name.startswith("loss_")))
    if not names or any(len(_own(row)) > 1 for row in rows):  # otherwise the total is the only role's loss
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


def _own(row: Row) -> list[str]:
    """Names of the losses of the roles of a step."""
    return [name for name in row if name.startswith("loss_")]


def _add_ranges(shown: go.Figure, ranges: ReportedRanges, score: str) -> None:
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
