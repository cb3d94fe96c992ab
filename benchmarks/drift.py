"""Weights that adapt: the error of each method on streams that drift beside the source's, and how soon drift is noticed.

    python -m benchmarks.drift --work DIR [--parts alarms streams] [--networks resnet26 mobilenetv2 vit]
        [--streams clean continual …] [--methods tent …] [--seeds 5] [--images 100] [--single-images 15] [--severity 5]
        [--minutes 40] [--markdown] [--json FILE] [OVERRIDE …]

Networks learn ten characters of glyphs as `autotailor compile` does it, once; OVERRIDEs go there. The largest SubNet adapts,
with BatchNorm statistics of its own. DIR keeps networks and rows, and a second run goes on from there. After --minutes no row
is begun any more: tables then have what there is, and tell of how many seeds.

*Streams* (`tasks.data.drift`) are made of the test split at --severity: --images of each corruption, in batches of 64; *single*
is continual in batches of one image, --single-images of each corruption. Each seed is another order, with other noise and
class shares. *Source*: the SubNet as it is. Learning rates fall with the size of batches. *Guarded*: `GuardedSubnet` as it
comes; its profile and labelled images are of the validation split.

Bars, on means over seeds: the best method has at most 50 % of the source's error on continual, 70 % on mixed streams. In every
run, the guarded SubNet has at most one point more than the source on correlated and single streams, and 0.3 on clean ones.

*Alarms*, by features that are computed once, of images that nobody has seen. *Delay*: images from the first drifted one to
the alarm, after 200 clean ones, over --drawings orders. *False alarms*: among --clean-samples in random orders, for the stated
rate, by calibration that is drawn with them and by the network's own. A rate is kept unless it is refuted at 5 %.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.drift_alarms import AlarmPlan, delay_rows, false_alarm_rows, fresh_images, scores_of
from benchmarks.drift_streams import METHODS, STREAMS, MeasuredNetwork, StreamPieces, prepare, stream_rows
from benchmarks.tables import show
from benchmarks.trained import SMALL_GLYPHS, train

NETWORKS: dict[str, tuple[str, ...]] = {
    "resnet26": (
        "model=timm",
        "model.name=resnet26",
        "model.options={channels:[32,64,128,256]}",
        "base.epochs=6",
        "base.learning_rate=0.002",
    ),
    "mobilenetv2": (
        "model=timm",
        "model.name=mobilenetv2_050",
        "model.options={output_stride:8}",
        "base.optimiser=sgd",
        "base.learning_rate=0.1",
        "base.weight_decay=0",
        "base.epochs=12",
    ),
    "vit": ("model=callable", "model.name=benchmarks.small_vit:network", "base.epochs=12", "base.learning_rate=0.002"),
}
PARTS = ("alarms", "streams")
BAR_STREAMS = ("clean", "continual", "mixed", "correlated", "single")
MOST_POINTS = {"clean": 0.3, "correlated": 1.0, "single": 1.0}
"""By how much the guarded SubNet's error may be above the source's."""
MOST_SHARE = {"continual": 0.5, "mixed": 0.7}
"""Of the source's error that the best method may have."""
Rows = list[dict[str, Any]]


def measured(options: argparse.Namespace) -> dict[str, Rows]:
    """All rows, of this run and of earlier ones."""
    end_s = time.monotonic() + 60 * options.minutes
    networks = []
    for name in options.networks:
        trained = train([*SMALL_GLYPHS, *NETWORKS[name], *options.overrides], options.work / name, "compile")
        networks.append(MeasuredNetwork(name, trained.supernet.parent.name, prepare(trained)))
    found: dict[str, Rows] = {"streams": [], "delays": [], "false_alarms": [], "bars": []}
    if "alarms" in options.parts:
        alarms = AlarmPlan(options.pool, options.drifted, options.drawings, options.clean_samples, options.severity)
        fresh = fresh_images(trained.data, alarms.pool + alarms.drifted, networks[0].ready.images)
        for network in networks:
            scores = scores_of(network, fresh, alarms, options.work)
            found["delays"] += delay_rows(network.name, scores, alarms)
            found["false_alarms"] += false_alarm_rows(network.name, scores, alarms)
    if "streams" in options.parts:
        plan = StreamPieces(
            options.streams, options.methods, options.seeds, options.images, options.single_images, options.severity
        )
        found["streams"] += stream_rows(networks, plan, options.work, lambda: time.monotonic() >= end_s)
        found["bars"] = bar_rows(found["streams"])
    return found


def bar_rows(rows: Sequence[dict[str, Any]]) -> Rows:
    """Each bar of each network, by the rows of streams that there are. Methods are compared with the source's same seeds."""
    found: Rows = []
    for network in dict.fromkeys(row["network"] for row in rows):
        pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
        own = [row for row in rows if row["network"] == network]
        sources = {(row["stream"], row["seed"]): row["error_points"] for row in own if row["method"] == "source"}
        for row in own:
            if row["method"] != "source" and (row["stream"], row["seed"]) in sources:
                pair = row["error_points"], sources[row["stream"], row["seed"]]
                pairs.setdefault((row["stream"], row["method"]), []).append(pair)
        found += _shares(network, pairs)
        for title, most in MOST_POINTS.items():
            if guarded := pairs.get((title, "guarded")):
                above = max(error - source for error, source in guarded)
                bar = f"{title}: guarded above the source, points"
                found.append(_bar(network, bar, f"{most}", f"{above:.2f}", above <= most, len(guarded)))
    return found


def _shares(network: str, pairs: dict[tuple[str, str], list[tuple[float, float]]]) -> Iterator[dict[str, Any]]:
    """The bars of the best method. pairs: of errors, its own and the source's, by stream and method."""
    for title, most in MOST_SHARE.items():
        shares = {}
        for (stream_title, method), errors in pairs.items():
            own, source = np.array(errors).mean(0)
            if stream_title == title and source:
                shares[method] = float(own / source)
        if shares:
            best = min(shares, key=lambda method: shares[method])
            bar = f"{title}: best method, of the source's error"
            got = f"{100 * shares[best]:.0f} % ({best})"
            yield _bar(network, bar, f"{100 * most:.0f} %", got, shares[best] <= most, len(pairs[title, best]))


def _bar(network: str, bar: str, limit: str, measured: str, reached: bool, seeds: int) -> dict[str, Any]:
    row = {"network": network, "bar": bar, "limit": limit, "measured": measured, "reached": reached}
    return {**row, "seeds": seeds}


def error_lines(rows: Sequence[dict[str, Any]], methods: Sequence[str]) -> list[list[str]]:
    """A line for each network and stream: mean, deviation and number of seeds of each method."""
    lines = []
    for network, title in dict.fromkeys((row["network"], row["stream"]) for row in rows):
        cells = []
        for name in methods:
            wanted = (network, title, name)
            errors = [row["error_points"] for row in rows if (row["network"], row["stream"], row["method"]) == wanted]
            cells.append(f"{np.mean(errors):.1f} ± {np.std(errors):.1f} ({len(errors)})" if errors else "–")
        lines.append([network, title, *cells])
    return lines


def _show(found: dict[str, Rows], methods: Sequence[str], markdown: bool) -> None:
    if found["streams"]:
        lines = error_lines(found["streams"], methods)
        show(["network", "stream: error, points (seeds)", *methods], lines, markdown=markdown, width=200)
        print()
    for rows in (found["delays"], found["false_alarms"], found["bars"]):
        if rows:
            show(
                list(rows[0]), [[_cell(value) for value in row.values()] for row in rows], markdown=markdown, width=160
            )
            print()


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the training, such as base.epochs=8")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", required=True, help="networks, rows; a folder to go on from"
    )
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="none: networks alone")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(BAR_STREAMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=100, help="of each corruption (100)")
    parser.add_argument("--single-images", type=int, default=15, help="of each corruption, one by one (15)")
    parser.add_argument("--severity", type=int, choices=range(1, 6), default=5)
    parser.add_argument("--pool", type=int, default=4000, help="fresh clean images, for alarms (4000)")
    parser.add_argument("--drifted", type=int, default=300, help="fresh images of each corruption, for alarms (300)")
    parser.add_argument("--drawings", type=int, default=100, help="orders of each corruption (100)")
    parser.add_argument("--clean-samples", type=int, default=300_000, help="for false alarms (300000)")
    parser.add_argument("--minutes", type=float, default=40.0, help="after which nothing is begun any more (40)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    found = measured(options)
    _show(found, options.methods, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
