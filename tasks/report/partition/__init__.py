"""The page of a partition, and its picture: the network with its cuts, and the device of each operator in each plan."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from tasks.base.pages import environment, style
from tasks.base.schemas.placed import PartitionAnswer, PlanRow

PACKAGE = "tasks.report.partition"
COLOURS = ("#2f62bd", "#d9822b", "#3f8f5f", "#9b4f96", "#b3352f", "#5e6671")
LEFT, RIGHT, WIDTH = 110, 190, 1120
TOP, BARS, ROW, GAP = 40, 90, 26, 12
MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class _Box:
    """A rectangle of the picture, with a text that appears under the pointer."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    note: str


@dataclass(frozen=True, slots=True)
class _Label:
    """A text of the picture; `bold` or soft, at its start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    bold: bool = False


def render(answer: PartitionAnswer, command: str = "autotailor partition") -> str:
    """The whole page. The template escapes every text."""
    page: str = (
        environment(PACKAGE)
        .get_template("page.html")
        .render(
            title=f"Partition of {answer.network}",
            answer=answer,
            command=command,
            sections=sections(answer),
            style=style(PACKAGE),
        )
    )
    return page


def sections(answer: PartitionAnswer) -> Markup:
    """Plans with their picture, and the table of cuts: parts of a page."""
    templates = environment(PACKAGE)
    templates.filters |= {"names": names}
    found: str = templates.get_template("plans.html").render(
        answer=answer, picture=picture(answer), others=list(answer.plans[0].others_ms)
    )
    return Markup(found)


def picture(answer: PartitionAnswer) -> Markup:
    """The picture as SVG: bytes at each cut above; below, a row of operators in the colours of their devices for each plan."""
    count = len(answer.operators)
    step = (WIDTH - LEFT - RIGHT) / count
    boxes, labels = _bars(answer, step)
    rows_at = TOP + BARS + GAP
    colour_of = dict(zip(answer.devices, COLOURS, strict=False))
    for number, plan in enumerate(answer.plans):
        y = rows_at + number * (ROW + GAP)
        boxes += _cells(answer, plan, y, step, colour_of)
        labels.append(_Label(LEFT - 8, y + 17, f"{plan.bandwidth_mbps:g} Mbit/s", "end"))
        labels.append(_Label(WIDTH - RIGHT + 8, y + 17, _described(plan), bold=True))
    svg: str = (
        environment(PACKAGE)
        .get_template("picture.svg")
        .render(
            width=WIDTH,
            height=rows_at + len(answer.plans) * (ROW + GAP) + 8,
            boxes=boxes,
            labels=labels,
            keys=[(LEFT + 150 * at, name, colour_of[name]) for at, name in enumerate(answer.devices)],
        )
    )
    return Markup(svg)


def names(values: Sequence[str]) -> str:
    """Names of values; only the first ones if there are many."""
    more = f" and {len(values) - MOST_NAMES} more" if len(values) > MOST_NAMES else ""
    return ", ".join(values[:MOST_NAMES]) + more


def _described(plan: PlanRow) -> str:
    if plan.period_ms is not None:
        return f"{plan.period_ms:.4g} ms an answer"
    return f"{plan.latency_ms:.4g} ms" + ("" if plan.transfers else ", nothing is sent")


def _bars(answer: PartitionAnswer, step: float) -> tuple[list[_Box], list[_Label]]:
    """A bar at each cut, as high as the logarithm of its bytes; cuts crossed by one value are darker."""
    sizes = [cut.bytes for cut in answer.cuts]
    least, most = math.log(min(size for size in sizes if size)), math.log(max(sizes))
    boxes = []
    for cut in answer.cuts:
        height = BARS * (0.15 + 0.85 * (math.log(max(cut.bytes, 1)) - least) / ((most - least) or 1.0))
        values = "1 value" if len(cut.values) == 1 else f"{len(cut.values)} values"
        note = f"cut {cut.cut}: {cut.bytes / 1024:.4g} KiB, {values}"
        colour = "#5e6671" if len(cut.values) == 1 else "#c3c8d0"
        x = LEFT + cut.cut * step - step / 4
        boxes.append(_Box(x, TOP + BARS - height, step / 2, height, colour, note))
    labels = [
        _Label(LEFT - 8, TOP + 10, f"{max(sizes) / 1024:.4g} KiB", "end"),
        _Label(LEFT - 8, TOP + BARS, "bytes at cuts", "end"),
        _Label(WIDTH - RIGHT + 8, TOP + BARS, "dark: one value"),
    ]
    return boxes, labels


def _cells(answer: PartitionAnswer, plan: PlanRow, y: float, step: float, colour_of: dict[str, str]) -> list[_Box]:
    device_of = {at: stay.device for stay in plan.stays for at in stay.operators}
    found = []
    for at, one in enumerate(answer.operators):
        device = device_of[at]
        note = f"{at}: {one.title} ({one.place}) on {device}, {one.compute_ms[device]:.4g} ms"
        found.append(_Box(LEFT + at * step, y, step, ROW, colour_of[device], note))
    changes = [b for a, b in pairwise(range(len(answer.operators))) if device_of[a] != device_of[b]]
    lines = (_Box(LEFT + at * step - 1, y - 4, 2, ROW + 8, "#1d2127", f"cut {at}: change of device") for at in changes)
    return [*found, *lines]
