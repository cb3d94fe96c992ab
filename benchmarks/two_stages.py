"""AdaptiveNet's Figure 8 in shape: random SubNets of a detector and a segmenter that were trained in two stages.

    python -m benchmarks.two_stages --work DIR [--tasks detection segmentation] [--subnets 500] [--images 200]
        [--recalibration 64] [--json FILE] [--picture FILE] [--markdown] [OVERRIDE …]

The backbone of each network is trained on single glyphs, made elastic and distilled there, joined to the head, and tuned on
scenes (`pretraining.backbone`). Two SuperNets of each, after equal training in both stages (the same images, epochs and
strategies, from the same base network): *both* has elastic sizes and alternatives to blocks, *sizes* the sizes alone. So
many random SubNets of each, and all uniformly shrunk ones of *sizes* (one relative size everywhere), are evaluated on test
images with BatchNorm statistics of their own. Each point is a SubNet: its score over its multiply-accumulates.

Table: the mean score in each quarter of the way from the fewest to the most MACs of all, and the best score up to that many.
--picture: all points. OVERRIDE: options of all runs. DIR keeps everything; a second run goes on from there.
Source: AdaptiveNet (MobiCom 2023) §7.3, Figure 8.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

import tailor_ir
from adaptive_runtime.base.files import replace_file
from benchmarks.tables import show
from benchmarks.trained import Trained, train
from tasks.base.artifacts import digest_of
from tasks.base.progress import Silent
from tasks.data import load_splits
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.search.baselines.subnets import random, uniform

BOTH, SIZES, UNIFORM = "both", "sizes", "uniform"
SORTS = {BOTH: "sizes and alternatives", SIZES: "sizes alone", UNIFORM: "uniformly shrunk"}
QUARTERS, SEED = 4, 0
COMMON = (
    "model=callable",
    "data.resolution=48",
    "data.classes=3",
    "data.images=1200",
    "space.width_mult=auto",
    "space.expand_ratio=auto",
    "space.depth=auto",
    "pretraining.backbone=backbone",
    "pretraining.data.resolution=48",
    "pretraining.data.images=1800",
    "pretraining.data.classes=10",
    "pretraining.base.epochs=6",
    "pretraining.base.batch_size=16",
    "pretraining.base.micro_batch=16",
    "pretraining.base.processes=1",
    "pretraining.base.learning_rate=0.003",
    "pretraining.finetune.epochs=2",
    "pretraining.finetune.batch_size=16",
    "pretraining.finetune.micro_batch=16",
    "pretraining.finetune.processes=1",
    "pretraining.finetune.learning_rate=0.001",
    "pretraining.finetune.strategy=sandwich",
    "pretraining.finetune.ranges.subnets=0",
    "base.epochs=10",
    "base.batch_size=16",
    "base.micro_batch=16",
    "base.processes=1",
    "base.learning_rate=0.003",
    "base.label_smoothing=0",
    "finetune.epochs=4",
    "finetune.batch_size=16",
    "finetune.micro_batch=16",
    "finetune.processes=1",
    "finetune.learning_rate=0.002",
    "finetune.label_smoothing=0",
    "finetune.strategy=sandwich",
    "finetune.ranges.subnets=0",
)
"""Words of the command line that both tasks and both spaces have."""
TASKS = {
    "detection": (
        "model.name=conf.networks.detectors:fcos_small",
        "data=glyph_boxes",
        "data.head=fcos",
        "data.images=2400",
        "base.epochs=16",
    ),
    "segmentation": ("model.name=conf.networks.segmentation:pyramid", "data=glyph_scenes"),
}
"""What each task has besides. Boxes of scenes are a third to a half of an image of 48 pixels: FCOS looks for them 8 pixels
apart, and SSDLite, whose anchors of that size are centred on 2 x 2 places, misses most of them."""
SPACES = {BOTH: ("space.alternatives=[merged,pruned]",), SIZES: ()}
HEADS = ("task", "SubNets", "number", *(f"quarter {place + 1} of the MACs" for place in range(QUARTERS)))
Row = dict[str, Any]


def words_of(task: str, space: str, overrides: Sequence[str]) -> list[str]:
    """The words of one run."""
    data = [word for word in TASKS[task] if word.startswith("data=")]
    return [*data, *COMMON, *(word for word in TASKS[task] if word not in data), *SPACES[space], *overrides]


def points(trained: Trained, sort: str, options: argparse.Namespace, folder: Path) -> list[Row]:
    """The SubNets of a sort: MACs, and the score on test images. folder: keeps what of this SuperNet was evaluated."""
    net = tailor_ir.load(trained.supernet)
    rng = np.random.default_rng(SEED)
    codes = uniform(net.space) if sort == UNIFORM else random(net.space, options.subnets, rng)
    configs = [net.space.decode(row) for row in codes]
    splits = load_splits(trained.data)
    images = EvaluationData(
        splits["test"], splits["train"], limit=options.images, recalibration_images=options.recalibration
    )
    key = digest_of(trained.supernet, dict(images.counts))
    found = accuracies(net, configs, images, folder / f"{sort}-{key}.jsonl", Silent())
    return [{"macs": net.macs(config), "score": one.share} for config, one in zip(configs, found, strict=True)]


def measured(task: str, options: argparse.Namespace) -> Row:
    """All points of a task, and what its base network and its SuperNets are."""
    work: Path = options.work / task
    trained = {space: train(words_of(task, space, options.overrides), work) for space in SPACES}
    sources = {BOTH: BOTH, SIZES: SIZES, UNIFORM: SIZES}
    found = {sort: points(trained[space], sort, options, work) for sort, space in sources.items()}
    spaces = {space: tailor_ir.load(one.supernet) for space, one in trained.items()}
    return {
        "task": task,
        "points": found,
        "largest": {space: one.result["largest_test_accuracy"] for space, one in trained.items()},
        "most_macs": spaces[SIZES].macs(spaces[SIZES].max_config),
        "distinct": {space: net.space.distinct for space, net in spaces.items()},
    }


def bounds_of(row: Row) -> list[float]:
    """Of the quarters, in MACs of all points: one more than quarters."""
    macs = [point["macs"] for found in row["points"].values() for point in found]
    return [float(bound) for bound in np.linspace(min(macs), max(macs), QUARTERS + 1)]


def quarters(points: Sequence[Mapping[str, float]], bounds: Sequence[float]) -> list[tuple[int, float, float]]:
    """For each quarter: how many points it has, their mean score (NaN for none), and the best score of all up to its end."""
    rows = []
    for place, (low, high) in enumerate(pairwise(bounds)):
        inside = [one["score"] for one in points if (one["macs"] > low or place == 0) and low <= one["macs"] <= high]
        below = [one["score"] for one in points if one["macs"] <= high]
        rows.append((len(inside), float(np.mean(inside)) if inside else np.nan, max(below, default=np.nan)))
    return rows


def cells(row: Row) -> list[list[str]]:
    """Lines of the table of a task, one for each sort."""
    bounds = bounds_of(row)
    lines = []
    for sort, found in row["points"].items():
        told = [f"{mean:.1%} / {best:.1%} ({count})" for count, mean, best in quarters(found, bounds)]
        lines.append([row["task"], SORTS[sort], str(len(found)), *(text.replace("nan%", "–") for text in told)])
    return lines


def draw(rows: Sequence[Row], file: Path) -> None:
    """All points of all tasks."""
    figure = matplotlib.figure.Figure(figsize=(5 * len(rows), 3.6), layout="constrained")
    for place, row in enumerate(rows):
        axes = figure.add_subplot(1, len(rows), place + 1)
        for sort, marker, colour in ((BOTH, ".", "tab:blue"), (SIZES, ".", "tab:orange"), (UNIFORM, "D", "black")):
            x, y = ([point[key] for point in row["points"][sort]] for key in ("macs", "score"))
            scaled = np.array(x) / 1e6
            axes.scatter(scaled, 100 * np.array(y), s=14, marker=marker, color=colour, label=SORTS[sort], alpha=0.6)
        axes.set(title=row["task"], xlabel="MACs, millions", ylabel="test score, %")
        axes.legend(frameon=False)
    figure.savefig(file)


def main() -> None:
    """Train what is missing, evaluate, print the table, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--subnets", type=int, default=500)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--recalibration", type=int, default=64)
    parser.add_argument("--json", type=Path, help="default: two_stages.json in DIR")
    parser.add_argument("--picture", type=Path, help="default: two_stages.svg in DIR")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    options = parser.parse_args()
    work: Path = options.work
    work.mkdir(parents=True, exist_ok=True)
    told, picture = options.json or work / "two_stages.json", options.picture or work / "two_stages.svg"
    rows: list[Row] = json.loads(told.read_text()) if told.exists() else []
    for task in options.tasks:
        if not any(row["task"] == task for row in rows):
            rows.append(measured(task, options))
            replace_file(told, json.dumps(rows))
    show(HEADS, [line for row in rows for line in cells(row)], markdown=options.markdown)
    for row in rows:
        largest = ", ".join(f"{SORTS[space]} {score:.1%}" for space, score in row["largest"].items())
        counts = ", ".join(f"{SORTS[space]} {count:.3g}" for space, count in row["distinct"].items())
        print(f"{row['task']}: largest SubNet {row['most_macs'] / 1e6:.1f} M MACs, {largest}; SubNets: {counts}")
    draw(rows, picture)


if __name__ == "__main__":
    main()
