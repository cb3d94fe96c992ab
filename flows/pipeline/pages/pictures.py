"""Pictures in Prefect's UI, embedded as `data:` addresses because the UI's server has no access to a run's files."""

import base64
import io
from collections.abc import Sequence

from flows.pipeline.pages.tables import Row
from tasks.report.looks import BLUE, GREEN, ORANGE

SIZE_INCHES = (7.2, 4.2)
DOTS_PER_INCH = 110


def front_picture(device: Row) -> str:
    """The measured front of one device of a report, as a `data:` address of a PNG."""
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot(
        xlabel="measured latency [ms]", ylabel=f"test {device['score']} [%]", title=device["name"]
    )
    winners = list({row["digest"]: row for row in device["winners"]}.values())
    for rows, name, marker, color, filled in (
        (device["baseline"], "uniformly shrunk", "s", ORANGE, True),
        ([row for row in winners if not row["on_front"]], "winners, dominated", "o", BLUE, False),
        ([row for row in winners if row["on_front"]], "winners", "o-", BLUE, True),
        ([device["base"]], device["base"]["name"], "*", GREEN, True),
    ):
        if points := _points(rows):
            size = 14 if marker == "*" else 7
            face = color if filled else "none"
            axes.plot(
                *zip(*points, strict=True), marker, color=color, markerfacecolor=face, label=name, markersize=size
            )
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend()
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DOTS_PER_INCH)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _points(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Latency [ms] and accuracy [%] of the SubNets that have both, sorted by latency."""
    known = [row for row in rows if row["measured_ms"] is not None and row["accuracy"] is not None]
    return sorted((row["measured_ms"], 100 * row["accuracy"]) for row in known)
