"""Measured fronts of several spaces on one device, below one corner."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tables import show
from tasks.search.baselines.stage import Point, compare, picks

SIZES, ALTERNATIVES, BOTH = "sizes", "alternatives", "both"
BAR = 1.05
Row = dict[str, Any]


def points_of(device: Row, times_ms: Mapping[str, float]) -> dict[str, Point]:
    """The different winners of a device by digest."""
    found = {}
    for row in device["winners"]:
        known = row.get("measured_accuracy")
        known = row["predicted_accuracy"] if known is None else known
        found[row["digest"]] = Point(times_ms[row["digest"]], known, row["accuracy"])
    return found


def fronts_of(points: Mapping[str, Mapping[str, Point]]) -> dict[str, Row]:
    """By space: its front, what is told of it, and its hypervolume below the corner that all spaces have in common."""
    fronts = {space: picks(list(own.values())) for space, own in points.items()}
    latencies_ms = sorted({point.ms for front in fronts.values() for point in front})
    rows = {}
    for space, front in fronts.items():
        others = {other: list(own.values()) for other, own in points.items() if other != space}
        gains = compare(list(points[space].values()), others, latencies_ms)
        rows[space] = {
            "front": [point._asdict() for point in front],
            "hypervolume": gains.hypervolume,
            "reference_ms": gains.reference_ms,
            "reference_accuracy": gains.reference_accuracy,
            "against": {name: one.to_json() for name, one in gains.baselines.items()},
        }
    return rows


def ratio_to_better(rows: Mapping[str, Row]) -> float:
    """The hypervolume of both over that of the better one."""
    return float(rows[BOTH]["hypervolume"] / max(rows[SIZES]["hypervolume"], rows[ALTERNATIVES]["hypervolume"]))


def show_fronts(trainings: Sequence[Row], devices: Sequence[Row], *, markdown: bool) -> None:
    """A row for each space on each device."""
    heads = (
        "device",
        "space",
        "training, s",
        "epochs",
        "SubNets",
        "winners",
        "on the front",
        "latency, ms",
        "test accuracy, %",
        "hypervolume, ms x points",
        "both over it",
    )
    cells = []
    for device in devices:
        for training in trainings:
            space = training["space"]
            found = device["fronts"][space]
            ms, shares = ([point[key] for point in found["front"]] for key in ("ms", "true"))
            own = found["hypervolume"]
            cells.append(
                (
                    device["device"],
                    space,
                    f"{training['seconds']:.0f}",
                    " + ".join(f"{n} {s}" for n, s in zip(training["epochs"], training["strategies"], strict=True)),
                    f"{int(device['distinct'][space]):,}",
                    str(found["winners"]),
                    str(len(ms)),
                    f"{min(ms):.3f}-{max(ms):.3f}",
                    f"{100 * min(shares):.1f}-{100 * max(shares):.1f}",
                    f"{100 * own:.2f}",
                    f"{device['fronts'][BOTH]['hypervolume'] / own:.3f}" if own else "-",
                )
            )
    show(heads, cells, markdown=markdown, width=190)
    for device in devices:
        corner = device["fronts"][BOTH]
        ms, share = corner["reference_ms"], corner["reference_accuracy"]
        holds = "holds" if device["ratio"] >= BAR else "does NOT hold"
        told = f"{device['device']}: both over the better one {device['ratio']:.3f} (bar: {BAR}, {holds})"
        print(f"{told}; corner {ms:.3f} ms, {share:.2%}")
