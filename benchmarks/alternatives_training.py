"""Branch-wise distillation and tuning of alternatives, against labels alone and distillation alone at equal wall time.

    python -m benchmarks.alternatives_training [--minutes 8] [--images 12000] [--base-epochs 5] [--subnets 100]
        [--kinds merged pruned low_rank separable] [--weights-alone | --published] [--branches-share 0.2]
        [--tune-rate FACTOR] [--learning-rate 0.002] [--work DIR] [--json FILE]

A slim ResNet-26 learns ten characters of glyphs (32 pixels) and becomes a SuperNet of alternatives with fixed sizes. Three
trainings of the alternatives start from there on one process, the network frozen, each for `--minutes` of steps: branches for
`--branches-share` of the time, then tune, which learns from labels; tune alone (labels alone); branches alone (distillation
alone). The number of whole epochs follows from the time of an epoch of each strategy.

First weights of the alternatives come from images. `--weights-alone`: they are made without images, as AdaptiveNet's are.
`--published`: so are those of labels alone and distillation alone, as in the paper, while branches, then tune, have first
weights from images, whose time counts as theirs.

Test accuracies of `--subnets` random SubNets, as many in each of four ranges of MACs as there are, BatchNorm recalibrated; the
same SubNets in four ranges of latency, timed in onnxruntime on one thread.

Costs: seconds of one epoch of each strategy and of the sandwich rule (which trains the network, too), by the median step, and
the most resident memory of the training process. DIR keeps everything; a second run goes on from there.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.profiled import least_p50_ms
from benchmarks.trained import once
from tasks.base.artifacts import read_json, read_lines
from tasks.base.schemas.results import WatchedSubNets
from tasks.data import DataSettings, load_splits
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.training import base_network as base
from tasks.training import compile as compilation
from tasks.training import finetune
from tasks.training.finetune.ranges import RANGES, choose

MODEL = ModelSettings(name="resnet26", options={"channels": [32, 64, 128, 256]})
BOTH, LABELS, DISTILLED = "branches, tune", "labels alone", "distillation alone"
STRATEGIES: dict[str, dict[str, Any]] = {
    "branches": {"strategy": "branches"},
    "tune": {"strategy": "tune"},
    "sandwich": {"strategy": "sandwich"},
}
WARM_UP = 5
"""Steps of an epoch that are not timed."""


class Watcher(Terminal):
    """Bars on the terminal, and the most memory that the rank of a training had [MiB]."""

    def __init__(self) -> None:
        self.peak_mib = 0.0

    def metrics(self, values: dict[str, float], step: int) -> None:
        for child in psutil.Process().children(recursive=True):
            try:
                command = child.cmdline()
                if "tasks.training.finetune.worker" in command and "torch.distributed.run" not in command:
                    status = Path(f"/proc/{child.pid}/status").read_text(encoding="utf-8")
                    self.peak_mib = max(self.peak_mib, int(status.partition("VmHWM:")[2].split()[0]) / 1024)
            except (psutil.Error, OSError, IndexError):
                continue  # it has ended meanwhile


class Work:
    """A folder with everything that is made once."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.data = DataSettings.model_validate(
            {"kind": "glyphs", "images": options.images, "classes": 10, "resolution": 32, "workers": 1}
            | {"validation_share": 0.2, "test_share": 0.2}
        )
        self.splits = load_splits(self.data)
        images = 0 if options.weights_alone else compilation.Settings().alternative_images
        self.base = self._once("base", self._learn)
        self.supernet = self._once("compiled", lambda folder: self._compile(folder, images)) / "supernet"
        self.plain = self._once("plain", lambda folder: self._compile(folder, 0)) / "supernet"
        self.net = tailor_ir.load(self.supernet)
        self.watched = choose(self.net, options.subnets, seed=1)

    def _once(self, name: str, make: Callable[[Path], dict[str, Any]]) -> Path:
        """A folder that `make` fills, unless it has."""
        return once(self.folder / name, make)

    def _learn(self, folder: Path) -> dict[str, Any]:
        settings = base.Settings(epochs=self.options.base_epochs, learning_rate=0.002, processes=1)
        return dict(base.run(settings, MODEL, self.data, folder, Terminal()))

    def _compile(self, folder: Path, images: int) -> dict[str, Any]:
        weights, start_s = self.base / base.WEIGHTS_FILE, time.monotonic()
        space = {"alternatives": tuple(self.options.kinds)}
        settings = compilation.Settings(alternative_images=images)
        made = compilation.run(settings, MODEL, self.data, weights, space, folder, Terminal())
        return {**made, "seconds": time.monotonic() - start_s}

    @property
    def images_s(self) -> float:
        """What first weights from images take longer than those without."""
        took_s = [read_json(folder.parent / "result.json")["seconds"] for folder in (self.supernet, self.plain)]
        return max(0.0, took_s[0] - took_s[1])

    def trained(self, name: str, supernet: Path | None = None, **changes: Any) -> dict[str, Any]:
        """One training: the `folder` of the SuperNet, `step_s` of the median step, `seconds` of all steps, `peak_mib`."""
        common = {"processes": 1, "learning_rate": self.options.learning_rate, "ranges": {"subnets": 0}}
        settings = finetune.Settings.model_validate(common | changes)

        def make(folder: Path) -> dict[str, Any]:
            watcher = Watcher()
            found = finetune.run(settings, self.data, supernet or self.supernet, folder, watcher)
            return {**found, "peak_mib": watcher.peak_mib}

        folder = self._once(name, make)
        rates = [line["images_per_s"] for line in read_lines(folder / "history.jsonl")]
        steps_s = settings.batch_size / np.array(rates)
        costs = {"step_s": float(np.median(steps_s[WARM_UP:])), "seconds": float(steps_s[1:].sum())}
        return {**read_json(folder / "result.json"), **costs, "folder": folder / "supernet", "epochs": settings.epochs}

    def judged(self, name: str, supernet: Path) -> NDArray[np.float64]:
        """Test accuracies of the watched SubNets."""
        net = tailor_ir.load(supernet)
        data = EvaluationData(self.splits["test"], self.splits["train"])
        configs = [dict(one.config) for one in self.watched.subnets]
        found = accuracies(net, configs, data, self.folder / f"{name}.jsonl", Terminal())
        return np.array([one.share for one in found])

    def latencies_ms(self) -> NDArray[np.float64]:
        """The smallest p50 of each watched SubNet in onnxruntime [ms]."""
        configs = {one.digest: dict(one.config) for one in self.watched.subnets}
        known = least_p50_ms(self.net, configs, self.folder / "latencies.json")
        return np.array([known[one.digest] for one in self.watched.subnets])


def costs(work: Work) -> list[dict[str, Any]]:
    """A row for each strategy, from one epoch of it."""
    steps = work.splits["train"].steps(finetune.Settings().batch_size)
    rows = []
    for strategy, changes in STRATEGIES.items():
        found = work.trained(f"tried {strategy}", epochs=1, **changes)
        rows.append({"strategy": strategy, "epoch_s": steps * found["step_s"], "peak_mib": found["peak_mib"]})
    return rows


def trainings(work: Work, epoch_s: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each training, and one for the first weights, with the accuracies of all watched SubNets."""
    seconds = 60 * work.options.minutes

    def epochs(strategy: str, share: float = 1.0) -> int:
        return max(1, round(share * seconds / epoch_s[strategy]))

    published = work.options.published
    part, left = work.options.branches_share, 1 - work.images_s / seconds if published else 1.0
    shares = (epochs("branches", left * part), epochs("tune", left * (1 - part)))
    others = {"supernet": work.plain} if published else {}
    rates = None if work.options.tune_rate is None else (1.0, work.options.tune_rate)
    settings: dict[str, dict[str, Any]] = {
        BOTH: {"strategy": "branches,tune", "epochs": sum(shares), "phase_shares": shares, "phase_rates": rates},
        LABELS: {"strategy": "tune", "epochs": epochs("tune"), **others},
        DISTILLED: {"strategy": "branches", "epochs": epochs("branches"), **others},
    }
    rows = [{"training": "first weights", "accuracies": work.judged("first", work.supernet)}]
    if published:
        rows.append({"training": "first weights from weights alone", "accuracies": work.judged("plain", work.plain)})
    for name, changes in settings.items():
        found = work.trained(name, **changes)
        row = {"training": name, "epochs": found["epochs"], "seconds": found["seconds"]}
        rows.append(row | {"accuracies": work.judged(name, found["folder"])})
    return rows


def by_range(rows: Sequence[dict[str, Any]], numbers: NDArray[np.int64], labels: Sequence[str]) -> Table:
    """Mean accuracies by range; `numbers`: the range of each SubNet."""
    hit = [number for number in range(len(labels)) if (numbers == number).any()]
    heads = [f"{labels[number]} ({(numbers == number).sum()})" for number in hit]
    table = Table("training", "epochs", "seconds", *heads, "all")
    for row in rows:
        means = [row["accuracies"][numbers == number].mean() for number in hit]
        row["ranges" if "ranges" not in row else "latency_ranges"] = dict(zip(heads, map(float, means), strict=True))
        cells = [f"{100 * mean:.2f}" for mean in (*means, row["accuracies"].mean())]
        table.add_row(row["training"], str(row.get("epochs", "")), f"{row.get('seconds', 0):.0f}", *cells)
    return table


def macs_ranges(watched: WatchedSubNets) -> tuple[NDArray[np.int64], list[str]]:
    """The range of each SubNet, and what they are called."""
    million = [bound / 1e6 for bound in watched.bounds_macs]
    labels = [f"{million[number]:.2f}-{million[number + 1]:.2f} M MACs" for number in range(RANGES)]
    return np.array([one.range for one in watched.subnets]), labels


def latency_ranges(latencies_ms: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
    """The same by four equal ranges of latency."""
    bounds_ms = np.linspace(latencies_ms.min(), latencies_ms.max(), RANGES + 1)
    labels = [f"{bounds_ms[number]:.3f}-{bounds_ms[number + 1]:.3f} ms" for number in range(RANGES)]
    return np.searchsorted(bounds_ms[1:-1], latencies_ms, side="right"), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="of each training")
    parser.add_argument("--images", type=int, default=12_000, help="of all splits")
    parser.add_argument("--base-epochs", type=int, default=5)
    parser.add_argument("--subnets", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", default=["merged", "pruned", "low_rank", "separable"])
    parser.add_argument("--branches-share", type=float, default=0.2, help="of the time of branches, then tune")
    parser.add_argument("--tune-rate", type=float, help="factor of the learning rate of tune; default: the product's")
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--weights-alone", action="store_true", help="first weights without images")
    first.add_argument("--published", action="store_true", help="only those of the comparisons")
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--work", type=Path, metavar="DIR", help="what was trained; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Work(options, options.work or Path(temporary))
        spent = costs(work)
        rows = trainings(work, {row["strategy"]: row["epoch_s"] for row in spent})
        console = Console(width=160)
        console.print(by_range(rows, *macs_ranges(work.watched)))
        console.print(by_range(rows, *latency_ranges(work.latencies_ms())))
        accuracy = 100 * read_json(work.base / "result.json")["test_accuracy"]
        subnets = read_json(work.supernet.parent / "result.json")["distinct"]
        console.print(f"base network {accuracy:.2f} %, {subnets:,} SubNets, first weights {work.images_s:.0f} s")
    table = Table("strategy", "an epoch [s]", "peak memory [MiB]")
    for row in spent:
        table.add_row(row["strategy"], f"{row['epoch_s']:.1f}", f"{row['peak_mib']:.0f}")
    console.print(table)
    if options.json:
        told = [{**row, "accuracies": row["accuracies"].tolist()} for row in rows]
        options.json.write_text(json.dumps({"costs": spent, "trainings": told}, indent=1) + "\n")


if __name__ == "__main__":
    main()
