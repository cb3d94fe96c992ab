"""Search on the device against evolution and simulated annealing, under class shift, and its memory.

    python -m benchmarks.device_search [--work DIR] [--images 12000] [--base-epochs 5] [--epochs 10] [--rounds 5]
        [--rival-evaluations 1500] [--draws 10] [--parts rivals prefixes shifted memory] [--json FILE]

A slim ResNet-26 learns ten characters of glyphs (32 pixels) and becomes a SuperNet of alternatives, trained branch by branch
and then by labels. *Evaluations*: SubNets that each method evaluates on 500 images until it has the accuracy at which the
rival ended, ours a quarter of the rival's at most, by the same latencies and budget (60 % of the largest SubNet); rivals
begin near the budget. *On other images*: of what each method has found, since the best of many evaluations on the same images
is the best by chance, too. *Prefixes*: wall time of the SubNets of a search, each generation together and SubNet by SubNet.
*Class shift*: Dirichlet shares of classes; the SubNet that was found with 500 labelled images of a draw, and the one that was
found on unshifted validation images, on other images of the draw. *Memory*: PSS of a process that searches, over that of one
which runs the largest SubNet alone. DIR keeps the training.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tailor_ir
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.local_search import (
    AdditiveModel,
    LatencyRange,
    LocalSearchSettings,
    OwnEvaluation,
    OwnImages,
    PathScore,
    PrefixTree,
    Proposer,
    SegmentSessions,
    SegmentSpace,
    known_latencies,
    latency_ms,
    mutated,
)
from benchmarks.alternatives_training import Work
from benchmarks.bars import Terminal
from benchmarks.tables import show
from tasks.data.dataset import Dataset
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.export.bundles import single_replacements
from tests.support.runtime.bundled import write_plain_bundle

PathOf = tuple[int, ...]
BATCH, SEARCH_IMAGES, BUDGET_SHARE = 50, 500, 0.6
POPULATION, PARENTS = 50, 10
PARTS = ("rivals", "prefixes", "shifted", "memory")
FIRST_HEAT, COOLING = 0.02, 0.995
ALPHAS = (0.1, 0.005)
LARGEST = """
import sys, numpy as np, onnxruntime
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import session_options
bundle = OpenBundle.open(sys.argv[1])
net = bundle.manifest.subnets[0].nets["onnx"]
options = session_options(bundle.manifest.runs["onnx"].settings)
session = onnxruntime.InferenceSession(bundle.folder / net.files[0], options, providers=["CPUExecutionProvider"])
x = np.load(sys.argv[2])["x"]
size = net.input.shape[0]
for _ in range(3):
    for start in range(0, len(x) - size + 1, size):
        session.run(None, {net.input.name: np.ascontiguousarray(x[start : start + size])})
"""
SEARCH = """
import sys, pathlib
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.local_search import LocalSearchSettings, search
settings = LocalSearchSettings(budget_ms=float(sys.argv[4]), generations=3)
search(OpenBundle.open(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), settings, lambda event: None)
"""


@dataclass(frozen=True)
class Subject:
    """A bundle with segments, timed here. x, y: labelled images by split. losses_E: as shipped, of validation images."""

    bundle: OpenBundle
    ms_E: np.ndarray
    losses_E: np.ndarray
    splits: dict[str, OwnImages]

    @property
    def space(self) -> SegmentSpace:
        return SegmentSpace.of(self.bundle.blocks())

    @property
    def budget_ms(self) -> float:
        return BUDGET_SHARE * latency_ms(self.bundle.blocks().largest, self.ms_E)

    def range(self, settings: LocalSearchSettings) -> LatencyRange:
        budget_ms = settings.budget_ms
        return LatencyRange(self.space, self.ms_E, budget_ms * (1 - settings.range_share), budget_ms)


class Counted:
    """Accuracies of SubNets on some images; each SubNet is evaluated once. history: the best accuracy after each."""

    def __init__(self, subject: Subject, data: OwnImages, sessions: SegmentSessions) -> None:
        self.evaluation = OwnEvaluation(sessions, subject.bundle.blocks(), data, subject.ms_E, 256.0)
        self.known: dict[PathOf, PathScore] = {}
        self.history: list[float] = []

    def __call__(self, paths: Sequence[PathOf]) -> list[float]:
        new = [path for path in dict.fromkeys(paths) if path not in self.known]
        if new:
            for path, score in zip(new, self.evaluation.scores(new), strict=True):
                self.known[path] = score
                self.history.append(max([score.accuracy, *self.history[-1:]]))
        return [self.known[path].accuracy for path in paths]

    @property
    def best(self) -> PathOf:
        """The SubNet with the best accuracy."""
        return max(self.known, key=lambda path: self.known[path].accuracy)

    def until(self, accuracy: float) -> int | None:
        """Evaluations until an accuracy was there."""
        return next((at + 1 for at, best in enumerate(self.history) if best >= accuracy), None)


def ours(subject: Subject, counted: Counted, seed: int, evaluations: int = 144) -> tuple[PathOf, list[list[PathOf]]]:
    """The product's search: its best SubNet, and its generations."""
    settings = LocalSearchSettings(budget_ms=subject.budget_ms, seed=seed)
    (largest,) = counted.evaluation.scores([subject.bundle.blocks().largest])
    own_E = np.array([one.variable is None for one in subject.bundle.blocks().segments])
    model = AdditiveModel(subject.losses_E, own_E, largest, len(counted.evaluation.data))
    proposer = Proposer(subject.space, subject.ms_E, model, settings)
    generations: list[list[PathOf]] = []
    while len(counted.known) < evaluations and (paths := proposer.generation(len(generations), counted.known)):
        counted(paths)
        generations.append(paths)
    model.fit(counted.known)
    best = proposer.best(counted.known)
    assert best is not None
    return best, generations


def evolution(subject: Subject, counted: Counted, seed: int, evaluations: int) -> None:
    """Tournament-free evolution: the best parents, neighbours of them within the budget, the best of all survive."""
    rng, within = np.random.default_rng(seed), subject.range(LocalSearchSettings(budget_ms=subject.budget_ms))
    population = [path for path in (within.sample(rng) for _ in range(POPULATION)) if path is not None]
    scores = dict(zip(population, counted(population), strict=True))
    for _ in range(20 * evaluations // POPULATION):
        if len(counted.known) >= evaluations:
            return
        parents = sorted(scores, key=lambda path: -scores[path])[:PARENTS]
        drawn = (mutated(subject.space, parents[rng.integers(len(parents))], within, rng) for _ in range(POPULATION))
        children = [path for path in drawn if path is not None]
        scores |= dict(zip(children, counted(children), strict=True))
        scores = {path: scores[path] for path in sorted(scores, key=lambda path: -scores[path])[:POPULATION]}


def annealing(subject: Subject, counted: Counted, seed: int, evaluations: int) -> None:
    """Simulated annealing from a SubNet near the budget, by its neighbours."""
    rng, within = np.random.default_rng(seed), subject.range(LocalSearchSettings(budget_ms=subject.budget_ms))
    path, heat = within.sample(rng), FIRST_HEAT
    assert path is not None
    (score,) = counted([path])
    for _ in range(20 * evaluations):
        if len(counted.known) >= evaluations:
            return
        other = mutated(subject.space, path, within, rng)
        if other is None:
            continue
        (found,) = counted([other])
        if found >= score or rng.random() < np.exp((found - score) / heat):
            path, score = other, found
        heat *= COOLING


RIVALS: dict[str, Callable[[Subject, Counted, int, int], None]] = {"evolution": evolution, "annealing": annealing}


def made(options: argparse.Namespace, folder: Path) -> Subject:
    """Train, write the bundle, time its segments; what is there is taken."""
    work = Work(options, folder)
    epochs = options.epochs
    shares = (max(1, epochs // 5), max(1, epochs - epochs // 5))
    changes = {"strategy": "branches,tune", "epochs": sum(shares), "phase_shares": shares}
    trained = Path(work.trained("device search", **changes)["folder"])
    net = tailor_ir.load(trained, batch=BATCH)
    for name, size in (("bundle", BATCH), ("single", 1)):
        if not (folder / name / "bundle.json").exists():
            plain = tailor_ir.load(trained, batch=size)
            write_plain_bundle(plain, [plain.max_config], folder / name, blocks=True)
    bundle = OpenBundle.open(folder / "bundle")
    blocks = bundle.blocks()
    data = EvaluationData(work.splits["validation"], work.splits["train"])
    replaced = single_replacements(net)
    configs = [net.max_config, *replaced.values()]
    largest, *others = accuracies(net, configs, data, folder / "losses.jsonl", Terminal())
    lost = {place: largest.share - one.share for place, one in zip(replaced, others, strict=True)}
    losses = [lost.get((str(one.variable), str(one.choice)), np.nan) for one in blocks.segments]
    ms_E = known_latencies(bundle, blocks, folder).ms_E
    splits = {name: arrays(work.splits[name]) for name in ("validation", "test")}
    return Subject(bundle, ms_E, np.array(losses), splits)


def arrays(dataset: Dataset) -> OwnImages:
    """All images of a split."""
    x, y = (torch.cat(parts).numpy() for parts in zip(*dataset.batches(256), strict=True))
    return OwnImages(np.ascontiguousarray(x, np.float32), y.astype(np.int64))


def some(data: OwnImages, places: np.ndarray) -> OwnImages:
    assert data.labels is not None
    return OwnImages(np.ascontiguousarray(data.images[places]), data.labels[places])


def against_rivals(
    subject: Subject, sessions: SegmentSessions, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """A row for each round and rival: evaluations to the rival's last accuracy, and accuracies on other images (elsewhere)."""
    for seed in range(options.rounds):
        rng = np.random.default_rng(seed)
        test = subject.splits["test"]
        places = rng.permutation(len(test))
        data, others = some(test, places[:SEARCH_IMAGES]), some(test, places[SEARCH_IMAGES:])
        own, judged = Counted(subject, data, sessions), Counted(subject, others, sessions)
        own_best, _ = ours(subject, own, seed, options.rival_evaluations // 4)
        for name, rival in RIVALS.items():
            other = Counted(subject, data, sessions)
            rival(subject, other, seed, options.rival_evaluations)
            goal = other.history[-1]
            elsewhere, own_elsewhere = judged([other.best, own_best])
            yield {"round": seed, "rival": name, "accuracy": goal, "own_accuracy": own.history[-1]} | {
                "elsewhere": elsewhere,
                "own_elsewhere": own_elsewhere,
                "rival_evaluations": other.until(goal),
                "own_evaluations": own.until(goal),
                "saved": own.evaluation.counts.saved,
            }


def prefix_seconds(subject: Subject, sessions: SegmentSessions) -> dict[str, float]:
    """Wall time of the SubNets of a search, each generation together, and one by one [s]."""
    test = subject.splits["test"]
    data = some(test, np.arange(min(len(test), SEARCH_IMAGES)))
    _, generations = ours(subject, Counted(subject, data, sessions), 0)
    batches = [data.images[at : at + BATCH] for at in range(0, len(data) - BATCH + 1, BATCH)]
    seconds = {}
    for name, groups in (("together", generations), ("alone", [[path] for paths in generations for path in paths])):
        start_s = time.perf_counter()
        for group in groups:
            for _ in PrefixTree(sessions.run, subject.ms_E).logits(group, batches):
                pass
        seconds[f"{name}_s"] = time.perf_counter() - start_s
    return {**seconds, "saved": 1 - seconds["together_s"] / seconds["alone_s"]}


def shifted(subject: Subject, sessions: SegmentSessions, draws: int) -> Iterator[dict[str, Any]]:
    """A row for each draw: accuracies of the shipped winner and of the found SubNet on held-out images of the draw."""
    validation, test = subject.splits["validation"], subject.splits["test"]
    shipped, _ = ours(subject, Counted(subject, validation, sessions), 0)
    assert test.labels is not None
    for alpha in ALPHAS:
        for draw in range(draws):
            rng = np.random.default_rng([draw, int(1000 * alpha)])
            places = rng.permutation(len(test))
            halves = places[: len(places) // 2], places[len(places) // 2 :]
            classes = int(test.labels.max()) + 1
            shares = rng.dirichlet(np.full(classes, alpha))
            search, held_out = (_drawn(test, half, shares, rng) for half in halves)
            found, _ = ours(subject, Counted(subject, some(test, search), sessions), draw)
            judged = Counted(subject, some(test, held_out), sessions)
            before, after = judged([shipped, found])
            yield {"alpha": alpha, "draw": draw, "shipped": before, "found": after} | {
                "shipped_ms": latency_ms(shipped, subject.ms_E),
                "found_ms": latency_ms(found, subject.ms_E),
            }


def _drawn(data: OwnImages, half: np.ndarray, shares: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Images of a half by shares of classes, with replacement where a class has too few."""
    assert data.labels is not None
    labels = data.labels[half]
    wanted = rng.choice(len(shares), SEARCH_IMAGES, p=shares)
    return np.array([rng.choice(half[labels == one]) for one in wanted])


def memory(subject: Subject, folder: Path) -> dict[str, float]:
    """The most PSS [MiB] of a process with the largest SubNet alone, and of one that searches; one image a run."""
    data = some(subject.splits["test"], np.arange(min(SEARCH_IMAGES, len(subject.splits["test"]))))
    assert data.labels is not None
    np.savez(folder / "own.npz", x=data.images, y=data.labels)
    single = folder / "single"
    bundle = OpenBundle.open(single)
    (folder / "single search").mkdir(exist_ok=True)
    ms_E = known_latencies(bundle, bundle.blocks(), folder / "single search").ms_E
    budget_ms = BUDGET_SHARE * latency_ms(bundle.blocks().largest, ms_E)
    words = [str(single), str(folder / "own.npz"), str(folder / "single search"), str(budget_ms)]
    for name in ("search.json", "found.json"):
        (folder / "single search" / name).unlink(missing_ok=True)
    largest_mib, search_mib = _peak_mib(LARGEST, words[:2]), _peak_mib(SEARCH, words)
    return {"largest_mib": largest_mib, "search_mib": search_mib, "ratio": search_mib / largest_mib}


def _peak_mib(program: str, words: Sequence[str]) -> float:
    process = subprocess.Popen([sys.executable, "-c", program, *words])
    peak = 0.0
    while process.poll() is None:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        except OSError:
            break
        peak = max([peak, *(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))])
        time.sleep(0.01)
    assert process.wait() == 0
    return peak


def shown(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, each printed as soon as it is there."""
    found = []
    for row in rows:
        print(json.dumps(row), flush=True)
        found.append(row)
    return found


def told(found: dict[str, Any]) -> list[list[str]]:
    """Rows of the table: what, measured, the bar, whether it holds."""
    rows = []
    for name in RIVALS if "rivals" in found else ():
        own = [row for row in found["rivals"] if row["rival"] == name]
        reached = [row for row in own if row["own_evaluations"] is not None]
        shares = [row["own_evaluations"] / row["rival_evaluations"] for row in reached]
        share = float(np.mean(shares)) if shares else float("nan")
        holds = len(reached) == len(own) and share <= 0.25
        told_share = f"{share:.0%} of the evaluations; accuracy reached in {len(reached)} of {len(own)} rounds"
        rows.append([f"against {name}", told_share, "≤ 25 %", _yes(holds)])
        mean, error = _points([row["own_elsewhere"] - row["elsewhere"] for row in own])
        told_points = f"{mean:+.2f} ± {error:.2f} points with a quarter of the evaluations"
        rows.append([f"against {name}, on other images", told_points, "≥ 0", _yes(mean >= 0)])
    if "prefixes" in found:
        saved = found["prefixes"]["saved"]
        rows.append(["prefixes", f"{saved:.0%} of the time saved", "≥ 50 %", _yes(saved >= 0.5)])
    for alpha in ALPHAS if "shifted" in found else ():
        own = [row for row in found["shifted"] if row["alpha"] == alpha]
        mean, error = _points([row["found"] - row["shipped"] for row in own])
        latency = sum(row["found_ms"] for row in own) / sum(row["shipped_ms"] for row in own)
        told = f"{mean:+.2f} ± {error:.2f} points at {latency:.3f} of the latency"
        rows.append([f"class shift, α = {alpha:g}", told, "≥ 1 point", _yes(mean >= 1)])
    if "memory" in found:
        ratio = found["memory"]["ratio"]
        rows.append(["peak memory", f"{ratio:.2f} × the largest SubNet", "≤ 1.2 ×", _yes(ratio <= 1.2)])
    return rows


def _points(gains: Sequence[float]) -> tuple[float, float]:
    """Mean of differences of accuracies, in points, and its standard error."""
    return 100 * float(np.mean(gains)), 100 * float(np.std(gains) / np.sqrt(len(gains)))


def _yes(holds: bool) -> str:
    return "yes" if holds else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, metavar="DIR", help="what was trained; a folder to go on from")
    parser.add_argument("--images", type=int, default=12_000, help="of all splits")
    parser.add_argument("--base-epochs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10, help="of the alternatives")
    parser.add_argument("--kinds", nargs="+", default=["merged", "pruned", "low_rank", "separable"])
    parser.add_argument("--learning-rate", type=float, default=0.002)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rival-evaluations", type=int, default=1500)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    options.subnets, options.weights_alone = 4, False
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        subject = made(options, folder)
        sessions = SegmentSessions(subject.bundle, subject.bundle.blocks())
        parts: dict[str, Callable[[], Any]] = {
            "rivals": lambda: shown(against_rivals(subject, sessions, options)),
            "prefixes": lambda: prefix_seconds(subject, sessions),
            "shifted": lambda: shown(shifted(subject, sessions, options.draws)),
            "memory": lambda: memory(subject, folder),
        }
        found = {"subnets": subject.space.count, "budget_ms": subject.budget_ms}
        found |= {name: part() for name, part in parts.items() if name in options.parts}
    show(("what", "measured", "bar", "holds"), told(found), markdown=True)
    print(f"{found['subnets']:,} SubNets, budget {found['budget_ms']:.3g} ms for {BATCH} images")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
