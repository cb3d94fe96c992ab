"""Do accuracy predictors find the best SubNets? Against SubNets that were really evaluated, and against a learned predictor.

    python -m benchmarks.ranking [--networks resnet mobilenet] [--truth 600] [--groups 100] [--subnets 200]
                                 [--interactions 24] [--bound] [--work DIR] [--json FILE] [OVERRIDE …]

Each network is trained as `autotailor finetune` does it; OVERRIDEs go there. Predictors are made on the validation split. The
truth is that of the test split, which neither training nor a predictor has seen: so many different random SubNets, each with
its own BatchNorm statistics. Groups are drawn from them, without repetition within one.

Published metric (AutoTailor): how often the truly best SubNet of a group is among the five predicted best. Where several have
the group's highest accuracy, "best of five" counts any of them, "by loss" the one with the lowest loss. The learned predictor
is a mean over five seeds. Whether the product would use interactions is decided, as there, on 20 further SubNets, whose
evaluations are not counted. --bound evaluates the same SubNets on the validation split, too, and orders them by that: no
predictor made there can know more. Seconds: evaluations and fitting, of all runs together. DIR keeps everything; a second run
goes on from there.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.mlp import Mlp
from benchmarks.trained import Trained, train
from solvers.tables import Codes, Values
from tailor_ir import Config
from tasks.base.artifacts import read_json, write_json
from tasks.data import Split, load_splits
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies
from tasks.prediction.accuracy import AccuracyPredictor, modifications, sensitivities, validate
from tasks.prediction.sensitivity import better, describe, with_interactions

COMMON = (
    "data=glyphs",
    "data.images=24000",
    "data.classes=36",
    "data.resolution=32",
    "data.validation_share=0.125",
    "data.test_share=0.1875",
    "base.epochs=4",
    "finetune.epochs=8",
    "space.resolution=[20, 24, 28, 32]",
    "space.width_mult=auto",
    "space.depth=auto",
    "space.expand_ratio=auto",
)
NETWORKS: dict[str, tuple[str, ...]] = {
    "resnet": (
        "model.name=resnet26",
        "model.options={channels: [16, 32, 64, 128]}",
        "base.learning_rate=0.002",
        "finetune.learning_rate=0.002",
    ),
    "mobilenet": (
        "model.name=mobilenetv2_050",
        "model.options={output_stride: 8}",
        "base.optimiser=sgd",
        "base.learning_rate=0.1",
        "base.weight_decay=0",
        "finetune.optimiser=sgd",
        "finetune.learning_rate=0.05",
        "finetune.weight_decay=0",
    ),
}
TOP = 5
SEEDS = 5
HELD_OUT = 20
TRUTH_SEED, GROUP_SEED = 1, 2


@dataclass(frozen=True, slots=True)
class Truth:
    """What SubNets have on one split: accuracy (n,) and `rank` (n,), by which equal accuracies are ordered by their loss."""

    accuracy: Values
    rank: Values

    @classmethod
    def of(cls, measured: Sequence[Accuracy]) -> "Truth":
        """The truth of SubNets that were evaluated."""
        accuracy = np.array([found.share for found in measured])
        loss = np.array([found.loss for found in measured])
        rank = np.empty(len(measured))
        rank[np.lexsort((-loss, accuracy))] = np.arange(len(measured))
        return cls(accuracy, rank)


def draw_groups(subnets: int, groups: int, size: int, seed: int) -> Codes:
    """Indices (groups, size) below `subnets`, different ones within a group."""
    rng = np.random.default_rng(seed)
    return np.stack([rng.choice(subnets, size, replace=False) for _ in range(groups)])


def best_found(score: Values, truth: Values, groups: Codes) -> float:
    """Share of groups (G, n) in which a SubNet with the group's highest truth is among the five of highest score."""
    order = np.argsort(-score[groups], axis=1, kind="stable")[:, :TOP]
    chosen = truth[np.take_along_axis(groups, order, axis=1)]
    return float((chosen.max(axis=1) == truth[groups].max(axis=1)).mean())


def tied(truth: Values, groups: Codes) -> float:
    """How many SubNets of a group (G, n) share its highest truth, on average."""
    return float((truth[groups] == truth[groups].max(axis=1, keepdims=True)).sum(axis=1).mean())


def random_subnets(net: Any, count: int, seed: int) -> list[Config]:
    """Different random SubNets, as many as there are; the first ones are the same for any count."""
    rng = np.random.default_rng(seed)
    found: dict[str, Config] = {}
    while len(found) < min(count, net.space.distinct):
        config = net.space.sample(rng)
        found.setdefault(net.space.digest(config), config)
    return list(found.values())


@contextmanager
def stopwatch(file: Path) -> Iterator[None]:
    """Adds the seconds of what runs inside to those in `file`, also when it is interrupted."""
    start = time.perf_counter()
    try:
        yield
    finally:
        before = read_json(file) if file.exists() else 0.0
        write_json(file, before + time.perf_counter() - start)


class Evaluator:
    """Evaluates SubNets of one SuperNet; keeps everything in a folder."""

    def __init__(self, trained: Trained) -> None:
        self.net = tailor_ir.load(trained.supernet)
        self.folder = trained.supernet.parent / "ranking"
        self.folder.mkdir(exist_ok=True)
        splits = load_splits(trained.data)
        self.images = {split: len(images) for split, images in splits.items()}
        calibration = trained.predict.recalibration_images
        validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=calibration)
        self.data: dict[Split, EvaluationData] = {"validation": validation, "test": validation.of(splits["test"])}

    def file(self, split: Split) -> Path:
        """Where what is known of the SubNets on a split is kept."""
        return self.folder / f"{split}.jsonl"

    def __call__(self, name: str, split: Split, configs: Sequence[Config]) -> list[Accuracy]:
        """What the SubNets have."""
        with self.watch(name):
            return accuracies(
                self.net, configs, self.data[split], self.file(split), Terminal(), f"{name}, {split} split"
            )

    def watch(self, name: str) -> Any:
        """Measures the time of a step."""
        return stopwatch(self.folder / f"{name}-seconds.json")

    def seconds(self, name: str) -> float:
        """What a step took, in all runs together."""
        found: float = read_json(self.folder / f"{name}-seconds.json")
        return found


@dataclass(frozen=True, slots=True)
class Ranker:
    """What a predictor says of the SubNets of the truth, (n,) for each seed, and what it cost."""

    name: str
    evaluations: int
    scores: tuple[Values, ...]
    seconds: float

    def row(self, truth: Truth, groups: Codes) -> dict[str, Any]:
        """One row of the table: means over the seeds."""

        def mean(numbers: Sequence[float]) -> float:
            return float(np.mean(numbers))

        return {
            "predictor": self.name,
            "evaluations": self.evaluations,
            "best_of_five": mean([best_found(score, truth.accuracy, groups) for score in self.scores]),
            "by_loss": mean([best_found(score, truth.rank, groups) for score in self.scores]),
            "kendall_tau": mean([kendalltau(score, truth.accuracy).statistic for score in self.scores]),
            "seconds": self.seconds,
        }


def rankers(
    evaluate: Evaluator, codes: Codes, known: Sequence[Config], pairs: int
) -> tuple[list[Ranker], dict[str, Any]]:
    """Predictors for the SubNets of the truth (n, V); those that learn, learn from `known`. And what interactions bring."""
    net, space = evaluate.net, evaluate.net.space
    single = modifications(space)
    plain = AccuracyPredictor(sensitivities(space, evaluate("sensitivities", "validation", single)))
    found = [Ranker("sensitivities", len(single), (plain.score(codes),), evaluate.seconds("sensitivities"))]
    with evaluate.watch("interactions"):
        data, file = evaluate.data["validation"], evaluate.file("validation")
        paired = with_interactions(net, plain, pairs, data, file, Terminal())
    evaluations = len(single) + len(paired.table.interactions)
    seconds = evaluate.seconds("sensitivities") + evaluate.seconds("interactions")
    found.append(Ranker("with interactions", evaluations, (paired.score(codes),), seconds))
    for times in (1, 2):
        configs, name = known[: times * len(single)], f"learned-{times}"
        measured = evaluate(name, "validation", configs)
        start = time.perf_counter()
        shares = np.array([each.share for each in measured])
        seen = space.canonical_codes(space.encode(configs))
        learned = [Mlp(seen, shares, space.cardinalities, seed).predict(codes) for seed in range(SEEDS)]
        seconds = sum(evaluate.seconds(f"learned-{each}") for each in range(1, times + 1))
        seconds += (time.perf_counter() - start) / SEEDS
        found.append(Ranker(f"MLP, {times} x the evaluations", len(configs), tuple(learned), seconds))
    held_out = evaluate("learned-1", "validation", known[:HELD_OUT])
    held_codes = space.canonical_codes(space.encode(known[:HELD_OUT]))
    alone, both = (validate(predictor, held_codes, held_out).errors for predictor in (plain, paired))
    return found, describe(alone, both, paired, better(alone, both)).to_json()


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one network."""
    trained = train([*COMMON, *NETWORKS[name], *options.overrides], options.work / name)
    evaluate = Evaluator(trained)
    space = evaluate.net.space
    learning = 2 * len(modifications(space))
    configs = random_subnets(evaluate.net, options.truth + learning, TRUTH_SEED)
    subnets, known = configs[: options.truth], configs[options.truth :]
    codes = space.canonical_codes(space.encode(subnets))
    found, interactions = rankers(evaluate, codes, known, options.interactions)
    truth = Truth.of(evaluate("truth", "test", subnets))
    if options.bound:
        same = Truth.of(evaluate("bound", "validation", subnets))
        found.append(Ranker("evaluated on validation", len(subnets), (same.rank,), evaluate.seconds("bound")))
    groups = draw_groups(len(subnets), options.groups, options.subnets, GROUP_SEED)
    return {
        "network": name,
        "images": evaluate.images,
        "codes": space.codes,
        "modifications": len(modifications(space)),
        "training": trained.result,
        "truth": {
            "subnets": len(subnets),
            "seconds": evaluate.seconds("truth"),
            "accuracy": np.quantile(truth.accuracy, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1)).tolist(),
            "tied_for_best": tied(truth.accuracy, groups),
            "table": [
                {"config": config, "accuracy": accuracy}
                for config, accuracy in zip(subnets, truth.accuracy.tolist(), strict=True)
            ],
        },
        "interactions": interactions,
        "predictors": [each.row(truth, groups) for each in found],
    }


def show(result: dict[str, Any]) -> None:
    """A table for one network."""
    truth, pairs = result["truth"], result["interactions"]
    low, *_, high = truth["accuracy"]
    console = Console(width=120)
    columns = ("predictor", "evaluations", "best of five", "by loss", "Kendall's tau", "seconds")
    table = Table(*columns, title=result["network"])
    for row in result["predictors"]:
        table.add_row(
            row["predictor"],
            str(row["evaluations"]),
            f"{row['best_of_five']:.0%}",
            f"{row['by_loss']:.0%}",
            f"{row['kendall_tau']:.3f}",
            f"{row['seconds']:.0f}",
        )
    console.print(table)
    console.print(
        f"{truth['subnets']} SubNets, {low:.1%} to {high:.1%} on {result['images']['test']} images, {truth['seconds']:.0f} s; "
        f"{truth['tied_for_best']:.2f} share a group's best accuracy; interactions "
        f"{'would' if pairs['used'] else 'would not'} be used (tau on {HELD_OUT} further SubNets "
        f"{pairs['with_interactions']['kendall_tau']:.3f} with, {pairs['plain']['kendall_tau']:.3f} without)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--truth", type=int, default=600, help="SubNets that are really evaluated")
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--subnets", type=int, default=200, help="SubNets of a group")
    parser.add_argument("--interactions", type=int, default=24, help="pairs of modifications, at most")
    parser.add_argument("--bound", action="store_true", help="also order SubNets by their validation accuracy")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps everything; a second run goes on from there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as folder:
        options.work = options.work or Path(folder)
        results = []
        for name in options.networks:
            results.append(measure(name, options))
            show(results[-1])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
