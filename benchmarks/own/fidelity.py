"""SubNets tuned without labels (problem fidelity) against SubNets tuned with labels, from the same base network.

    nice -n 19 python -m benchmarks.own.fidelity [--data noisy_digits …] [--subnets 100] [--images 800]
                                                 [--work DIR] [--json FILE] [--markdown] [OVERRIDE …]

A base network learns a set of data as stage `base` does it. From its weights the stages `compile` and `finetune` make two
SuperNets with the same samples, settings and epochs: *labels* by the data's own problem, *fidelity* by the answers of the
base network alone. The same random SubNets of both are then judged on test samples by their labels, and those of
*fidelity* also by how often they answer as the base network. OVERRIDEs go to both SuperNets.

Bars: *fidelity* is at most one point less right at equal latency, and its score correlates with the true one by 0.95
(Pearson). At equal latency: in the mean over SubNets, each against itself; and at budgets spread over the latencies in
onnxruntime, where each way chooses the SubNet with its own highest score on validation samples. DIR keeps everything.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from scipy.stats import pearsonr, spearmanr

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.opened_batch_norms import COMMON, NETWORKS
from benchmarks.profiled import least_p50_ms
from benchmarks.ranking import random_subnets
from benchmarks.tables import show
from benchmarks.trained import SMALL_GLYPHS, base_weights, once, settings_of
from flows.config import RunConfig
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import digest_of
from tasks.data import Dataset, DataSettings, Split, load_splits
from tasks.data.settings import TEACHER_FILE
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.training import compile as compilation
from tasks.training import finetune

SHORT = ("finetune.processes=1", "finetune.ranges.subnets=0", "finetune.epochs=6", "finetune.silence_end_s=3600")
CASES: dict[str, tuple[str, ...]] = {
    "noisy_digits": (*COMMON, *NETWORKS["resnet26"], *SHORT),
    "glyphs": (
        *SMALL_GLYPHS,
        "data.images=5000",
        "model=timm",
        "model.name=resnet26",
        "model.options={channels:[16,32,64,128]}",
        "base.learning_rate=0.002",
        "base.epochs=30",
        *SHORT,
    ),
    "texts": ("+preset=texts", "data.images=6000", *SHORT),
}
WAYS: dict[str, tuple[str, ...]] = {"labels": (), "fidelity": ("problem=fidelity",)}
BUDGETS = 5
BAR_POINTS, BAR_CORRELATION = 1.0, 0.95
SEED = 1


class Row(TypedDict):
    """A set of data. base, means: right answers in [0, 1]; means over SubNets by way. budgets: latency [ms], and the right
    answers of the SubNets that each way chooses for it. pearson, spearman: of the score without labels with the true one.
    """

    data: str
    subnets: int
    samples: int
    epochs: int
    base: float
    largest: dict[str, float]
    means: dict[str, float]
    spread_points: float
    budgets: list[tuple[float, dict[str, float]]]
    pearson: float
    spearman: float


def tuned(config: RunConfig, weights: Path, folder: Path) -> tuple[Path, DataSettings]:
    """The folder of a SuperNet after stages `compile` and `finetune`, and its data, with the teacher where there is one."""

    def compiled(folder: Path) -> Mapping[str, Any]:
        space = config.space or None
        return compilation.run(config.compile, config.model, config.data, weights, space, folder, Terminal())

    supernet = once(folder / "compiled", compiled) / "supernet"
    teacher = supernet / TEACHER_FILE
    data = config.data.model_copy(update={"teacher": teacher}) if teacher.exists() else config.data
    trained = once(
        folder / f"{config.finetune.epochs} epochs",
        lambda folder: finetune.run(config.finetune, data, supernet, folder, Terminal()),
    )
    return trained / "supernet", data


def measure(name: str, options: argparse.Namespace, work: Path) -> Row:
    """The row of a set of data."""
    weights = base_weights(settings_of(CASES[name]), work)
    given = (*CASES[name], *options.overrides, f"model.checkpoint={weights}")
    configs = {way: settings_of((*given, *own)) for way, own in WAYS.items()}
    place = work / digest_of(*options.overrides) if options.overrides else work
    tuned_by = {way: tuned(config, weights, place / way) for way, config in configs.items()}
    splits = {way: load_splits(data) for way, (_, data) in tuned_by.items()}
    nets = {way: tailor_ir.load(supernet) for way, (supernet, _) in tuned_by.items()}
    net = nets["labels"]
    subnets = [net.max_config, *random_subnets(net, options.subnets, SEED)]

    def judged(way: str, by: str, split: Split) -> np.ndarray:
        """Scores [0, 1] of the SubNets of a way, by labels or fidelity."""
        file = tuned_by[way][0].parent / f"{by}, {split}, {options.images}.jsonl"
        images = seen[way].of(splits[by][split])
        found = accuracies(nets[way], subnets, images, file, Terminal(), f"{name}, {way}: {by}, {split}")
        return np.array([one.share for one in found])

    labels = splits["labels"]
    seen = {
        way: EvaluationData(labels["test"], labels["train"], recalibration_images=256, limit=options.images)
        for way in WAYS
    }
    true = {way: judged(way, "labels", "test") for way in WAYS}
    score = judged("fidelity", "fidelity", "test")[1:]
    chosen_by = {way: judged(way, way, "validation")[1:] for way in WAYS}
    subnets_ms = latencies_ms(net, subnets[1:], work)
    return {
        "data": name,
        "subnets": len(score),
        "samples": min(options.images, len(labels["test"])),
        "epochs": configs["labels"].finetune.epochs,
        "base": base_score(splits, options.images),
        "largest": {way: float(each[0]) for way, each in true.items()},
        "means": {way: float(each[1:].mean()) for way, each in true.items()},
        "spread_points": float(100 * (true["fidelity"] - true["labels"])[1:].std()),
        "budgets": at_budgets(subnets_ms, chosen_by, {way: each[1:] for way, each in true.items()}),
        "pearson": float(pearsonr(score, true["fidelity"][1:]).statistic),
        "spearman": float(spearmanr(score, true["fidelity"][1:]).statistic),
    }


def base_score(splits: Mapping[str, Mapping[Split, Dataset]], limit: int) -> float:
    """The share of right answers of the network whose answers are the targets, on the first test samples."""
    (_, y_B), (_, logits_BK) = (next(splits[way]["test"].batches(limit)) for way in WAYS)
    return float((logits_BK.argmax(1) == y_B).double().mean())


def latencies_ms(net: SuperNet, configs: Sequence[Config], work: Path) -> np.ndarray:
    """The smallest p50 of each SubNet in onnxruntime."""
    by_digest = {net.space.digest(config): config for config in configs}
    known = least_p50_ms(net, by_digest, work / "latencies.json")
    return np.array([known[digest] for digest in by_digest])


def at_budgets(
    subnets_ms: np.ndarray, chosen_by: Mapping[str, np.ndarray], true: Mapping[str, np.ndarray]
) -> list[tuple[float, dict[str, float]]]:
    """For budgets that equal shares of the SubNets keep: the true score of the SubNet that each way's own score chooses."""
    found = []
    for budget_ms in np.quantile(subnets_ms, np.arange(1, BUDGETS + 1) / BUDGETS):
        inside = np.flatnonzero(subnets_ms <= budget_ms)
        best = {way: inside[np.argmax(scores[inside])] for way, scores in chosen_by.items()}
        found.append((float(budget_ms), {way: float(true[way][place]) for way, place in best.items()}))
    return found


def _show(rows: Sequence[Row], *, markdown: bool) -> None:
    heads = (
        "data",
        "base [%]",
        "largest, labels [%]",
        "largest, fidelity [%]",
        "mean of SubNets, labels [%]",
        "mean of SubNets, fidelity [%]",
        "fidelity − labels [points]",
        "spread",
        "at budgets [ms: labels, fidelity %]",
        "Pearson",
        "Spearman",
    )
    cells = [
        (
            each["data"],
            f"{100 * each['base']:.1f}",
            *(f"{100 * each['largest'][way]:.1f}" for way in WAYS),
            *(f"{100 * each['means'][way]:.1f}" for way in WAYS),
            f"{100 * (each['means']['fidelity'] - each['means']['labels']):+.2f}",
            f"{each['spread_points']:.2f}",
            "; ".join(
                f"{budget_ms:.2f}: {100 * own['labels']:.1f}, {100 * own['fidelity']:.1f}"
                for budget_ms, own in each["budgets"]
            ),
            f"{each['pearson']:.3f}",
            f"{each['spearman']:.3f}",
        )
        for each in rows
    ]
    show(heads, cells, markdown=markdown, width=220)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--subnets", type=int, default=100)
    parser.add_argument("--images", type=int, default=800, help="validation and test samples of each judgement (800)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="networks; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        work = (options.work or Path(temporary)).resolve()
        rows = []
        for name in options.data:
            (work / name).mkdir(parents=True, exist_ok=True)
            rows.append(measure(name, options, work / name))
    _show(rows, markdown=options.markdown)
    for each in rows:
        if each["means"]["labels"] - each["means"]["fidelity"] > BAR_POINTS / 100:
            print(f"{each['data']}: fidelity is more than {BAR_POINTS} point below labels")
        if each["pearson"] < BAR_CORRELATION:
            print(f"{each['data']}: the score correlates by less than {BAR_CORRELATION}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
