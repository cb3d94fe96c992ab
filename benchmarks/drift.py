"""Weights that adapt: the error of each method on streams that drift beside the source's, and how soon drift is noticed.

    python -m benchmarks.drift --work DIR [--networks resnet26 mobilenetv2 vit] [--streams continual mixed …] [--methods tent …]
        [--seeds 5] [--images 1000] [--single-images 200] [--severity 5] [--clean-images 100000] [--markdown] [--json FILE]
        [OVERRIDE …]

Networks learn ten characters of glyphs as `autotailor finetune` does it, once; OVERRIDEs go there. The largest SubNet adapts,
with BatchNorm statistics of its own. Streams (`tasks.data.drift`) are made of the test split at --severity: --images of each
corruption, in batches of 64; *single* is continual in batches of one image, --single-images of each corruption. Each seed is
another order, with other noise and class shares. *Source*: the SubNet as it is. Learning rates fall with the size of batches.
*Guarded*: `GuardedSubnet` as it comes; its profile and labelled images are of the validation split.

Bars, on means over seeds: the best method has at most 50 % of the source's error on continual, 70 % on mixed streams. In every
run, the guarded SubNet has at most one point more than the source on correlated and single streams, and 0.3 on clean ones.

*Delay*: images from the first drifted one to the alarm, after 200 clean ones; how often it is noticed within --images.
*False alarms*: among --clean-images that nobody has seen, drawn like the others.
"""

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tailor_ir
from benchmarks.int8 import COMMON
from benchmarks.int8 import NETWORKS as CONVOLUTIONAL
from benchmarks.tables import show
from benchmarks.trained import Trained, train
from tailor_ir import SuperNet
from tasks.adaptation import AdaptationSettings, AdaptiveSubnet, GuardedSubnet
from tasks.data import Dataset, Split, load_splits
from tasks.data.drawn.glyphs import Glyphs
from tasks.data.drift import CORRUPTIONS, DriftSettings, LabelledImages, corrupt, stream
from tasks.evaluation.subnets import EvaluationData, statistics_of
from tasks.streams import KnownImages, StreamMethod, held_out_images, make_player
from tasks.streams.players import STREAM_METHODS

NETWORKS: dict[str, tuple[str, ...]] = {
    **CONVOLUTIONAL,
    "vit": (
        "model.name=vit_tiny_patch16_224",
        "model.options={patch_size:4,embed_dim:96,depth:6,num_heads:3}",
        "base.epochs=30",
        "base.learning_rate=0.001",
        "finetune.epochs=5",
    ),
}
STREAMS: dict[str, tuple[str, int]] = {
    "clean": ("clean", 64),
    "continual": ("continual", 64),
    "mixed": ("mixed", 64),
    "gradual": ("gradual", 64),
    "correlated": ("correlated", 64),
    "single": ("continual", 1),
    "returning": ("returning", 64),
    "shares": ("shares", 64),
}
"""Kind and batch size."""
METHODS = STREAM_METHODS
BEFORE = 200
MOST_POINTS = {"clean": 0.3, "correlated": 1.0, "single": 1.0}
"""By how much the guarded SubNet's error may be above the source's."""
MOST_SHARE = {"continual": 0.5, "mixed": 0.7}
"""Of the source's error that the best method may have."""


class Prepared(NamedTuple):
    """A SubNet, and the images that it is measured with."""

    source: AdaptiveSubnet
    images: LabelledImages
    known: KnownImages


def prepare(net: SuperNet, trained: Trained) -> Prepared:
    """The largest SubNet with its statistics; images of the test and the validation split."""
    splits = load_splits(trained.data)
    validation = EvaluationData(
        splits["validation"], splits["train"], recalibration_images=trained.predict.recalibration_images
    )
    source = AdaptiveSubnet.of(net, net.max_config, statistics_of(net, net.max_config, validation))
    return prepared(source, splits)


def prepared(source: AdaptiveSubnet, splits: dict[Split, Dataset]) -> Prepared:
    """Images of the test split; those of the validation split are known."""
    known = held_out_images(splits["validation"], (splits["validation"].settings.resolution,) * 2)
    return Prepared(source, LabelledImages.of(splits["test"]), known)


def guarded(ready: Prepared) -> GuardedSubnet:
    """The SubNet under guards as they come."""
    return GuardedSubnet(copy.deepcopy(ready.source), ready.known.anchor, ready.known.profile)


def right_answers(name: StreamMethod, ready: Prepared, settings: DriftSettings) -> np.ndarray:
    """For each image of a stream, whether its answer is right. All methods begin at the source."""
    player = make_player(name, ready.source, ready.known, AdaptationSettings(), settings.batch_size)
    batches = stream(settings, ready.images)
    return np.concatenate([(player.answer(batch.x_BCHW).argmax(1) == batch.y_B).numpy() for batch in batches])


def stream_rows(network: str, ready: Prepared, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each stream, seed and method: its error in points."""
    for title in options.streams:
        kind, size = STREAMS[title]
        images = options.single_images if title == "single" else options.images
        for seed in range(options.seeds):
            settings = DriftSettings.model_validate(
                {"stream": kind, "severity": options.severity, "images": images, "batch_size": size, "seed": seed}
            )
            for name in options.methods:
                error = 100 * (1 - float(right_answers(name, ready, settings).mean()))
                row = {"network": network, "stream": title, "seed": seed, "method": name, "error_points": error}
                print(row, flush=True)
                yield row


def delay_rows(network: str, ready: Prepared, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each corruption and seed: images until the alarm; None: not noticed. `early`: an alarm on clean images."""
    for number, name in enumerate(CORRUPTIONS):
        for seed in range(options.seeds):
            rng = np.random.default_rng((seed, number))
            chosen = rng.choice(len(ready.images.label_M), BEFORE + options.images)
            guard = guarded(ready)
            x_BCHW = ready.images.x_MCHW[chosen]
            places = range(len(x_BCHW) - BEFORE)
            drifted = corrupt(x_BCHW[BEFORE:], name, options.severity, seed=seed, places=places)
            first = _first_alarm(guard, ready.images, torch.cat([x_BCHW[:BEFORE], drifted]))
            yield {
                "network": network,
                "corruption": name,
                "seed": seed,
                "early": first is not None and first < BEFORE,
                "delay_images": None if first is None or first < BEFORE else first - BEFORE + 1,
            }


def _first_alarm(guard: GuardedSubnet, images: LabelledImages, x_NCHW: torch.Tensor) -> int | None:
    """The place of the image at which the detector alarms first."""
    place = 0
    for x_BCHW in x_NCHW.split(32):
        for score_D in guard.profile.look(images.normalised(x_BCHW))[1]:
            if guard.detector.update(score_D):
                return place
            place += 1
    return None


def false_alarms(network: str, ready: Prepared, trained: Trained, count: int) -> dict[str, Any]:
    """Alarms among fresh clean images: those that follow the data set's in the same drawing, in random order."""
    settings = trained.data
    glyphs = Glyphs(settings.model_copy(update={"images": settings.images + count}))
    guard = guarded(ready)
    order = np.random.default_rng(0).permutation(np.arange(settings.images, settings.images + count))
    alarms = 0
    for first in range(0, count, 256):
        x_BCHW = ready.images.normalised(glyphs.images(order[first : first + 256], None))
        alarms += sum(guard.detector.update(score_D) for score_D in guard.profile.look(x_BCHW)[1])
    return {"network": network, "clean_images": count, "false_alarms": alarms, "per_100000": alarms * 1e5 / count}


def bar_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each bar of each network, by the rows of streams that there are."""
    found = []
    for network in dict.fromkeys(row["network"] for row in rows):
        errors = {
            (row["stream"], row["seed"], row["method"]): row["error_points"]
            for row in rows
            if row["network"] == network
        }
        for title, most in MOST_SHARE.items():
            means = {
                name: float(np.mean(values))
                for name in METHODS
                if (values := [error for (s, _, method), error in errors.items() if (s, method) == (title, name)])
            }
            others = {name: mean for name, mean in means.items() if name != "source"}
            if "source" in means and others:
                best = min(others, key=lambda name: others[name])
                share = others[best] / means["source"] if means["source"] else 1.0
                bar = f"{title}: best method, of the source's error"
                found.append(_bar(network, bar, f"{100 * most:.0f} %", f"{100 * share:.0f} % ({best})", share <= most))
        for title, most in MOST_POINTS.items():
            seeds = [seed for stream_name, seed, name in errors if (stream_name, name) == (title, "guarded")]
            above = [
                errors[title, s, "guarded"] - errors[title, s, "source"]
                for s in seeds
                if (title, s, "source") in errors
            ]
            if above:
                bar = f"{title}: guarded above the source, points"
                found.append(_bar(network, bar, f"{most}", f"{max(above):.2f}", max(above) <= most))
    return found


def _bar(network: str, bar: str, limit: str, measured: str, reached: bool) -> dict[str, Any]:
    return {"network": network, "bar": bar, "limit": limit, "measured": measured, "reached": reached}


def _tables(
    found: dict[str, list[dict[str, Any]]], methods: Sequence[str]
) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Headers and rows: errors, delays, false alarms, bars."""
    lines = []
    for network, title in dict.fromkeys((row["network"], row["stream"]) for row in found["streams"]):
        cells = []
        for name in methods:
            wanted = (network, title, name)
            values = [
                row["error_points"]
                for row in found["streams"]
                if (row["network"], row["stream"], row["method"]) == wanted
            ]
            cells.append(f"{np.mean(values):.1f} ± {np.std(values):.1f}")
        lines.append([network, title, *cells])
    yield ["network", "stream", *methods], lines
    lines = []
    for network, name in dict.fromkeys((row["network"], row["corruption"]) for row in found["delays"]):
        rows = [row for row in found["delays"] if (row["network"], row["corruption"]) == (network, name)]
        delays = [row["delay_images"] for row in rows if row["delay_images"] is not None]
        median = f"{np.median(delays):.0f}" if delays else "–"
        lines.append([network, name, median, str(max(delays, default="–")), f"{len(delays)} of {len(rows)}"])
    yield ["network", "corruption", "median delay, images", "longest", "noticed"], lines
    yield (
        ["network", "clean images", "false alarms", "per 100,000"],
        [[str(value) for value in row.values()] for row in found["false_alarms"]],
    )
    yield (
        ["network", "bar", "limit", "measured", "reached"],
        [[str(value) for value in row.values()] for row in found["bars"]],
    )


def _show(found: dict[str, list[dict[str, Any]]], methods: Sequence[str], markdown: bool) -> None:
    for header, lines in _tables(found, methods):
        show(header, lines, markdown=markdown, width=200)
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the training, such as base.epochs=8")
    parser.add_argument("--work", type=Path, metavar="DIR", required=True, help="networks; a folder to go on from")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--images", type=int, default=1000, help="of each corruption (1000)")
    parser.add_argument("--single-images", type=int, default=200, help="of each corruption, one by one (200)")
    parser.add_argument("--severity", type=int, choices=range(1, 6), default=5)
    parser.add_argument("--clean-images", type=int, default=100_000, help="for false alarms (100000)")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, Any]]] = {"streams": [], "delays": [], "false_alarms": []}
    for name in options.networks:
        trained = train([*COMMON, *NETWORKS[name], *options.overrides], options.work / name)
        ready = prepare(tailor_ir.load(trained.supernet), trained)
        found["streams"] += stream_rows(name, ready, options)
        found["delays"] += delay_rows(name, ready, options)
        found["false_alarms"].append(false_alarms(name, ready, trained, options.clean_images))
    found["bars"] = bar_rows(found["streams"])
    _show(found, options.methods, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
