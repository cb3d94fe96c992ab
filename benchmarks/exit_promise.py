"""How often is the promise of exits broken, and what do they save?

    python -m benchmarks.exit_promise FILE.npz [--held-out 1000 2000 4000] [--epsilon 0.01] [--splits 200] [--json FILE]

FILE.npz: `logits` (N, E, K), `labels` (N,) and `latency_ms` (E,), as `benchmarks.exit_logits` makes it. From each of many
random splits, thresholds are made on the held-out part and applied to the rest. *Broken*: more than epsilon is lost,

- on the rest, as anybody would count it: this adds the noise of a finite test set to what is promised;
- in truth: held-out images are drawn with replacement, so that they are independent draws from the images of the file, of which
  the loss is known exactly. The promise is about this one.

The comparison is thresholds by calibrated probability alone: temperatures on the held-out images, then thresholds whose
predicted loss (calibrated probability of the full answer, less that of the early one) is epsilon; no test.

Bars (with exits of the product, of a network that is worth it): broken in at most 5 % of 200 splits, 40 % of latency saved.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.optimize import minimize_scalar

from adaptive_runtime.exits import MEASURES, exits_taken, trace
from tasks.exits import HeldOut, PromiseSettings, calibrate
from tasks.exits.calibration import ExitAnswers, find_path


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to leave early, applied to all images. measure: the chosen one. losses_N: against the full answer."""

    measure: str
    losses_N: np.ndarray
    latencies_N: np.ndarray
    full_ms: float


class Pool:
    """All images, with what exits answer by each measure, found once."""

    def __init__(self, images: HeldOut) -> None:
        self.images = images
        self.answers = cache(lambda name, full_exit: images.answers(MEASURES[name], full_exit))


def tested(held_out: HeldOut, pool: Pool, settings: PromiseSettings, rng: np.random.Generator) -> Policy:
    """Thresholds with a promise, applied to the pool."""
    thresholds = calibrate(held_out, settings, rng).thresholds
    taken_N, losses_N = pool.answers(thresholds.measure, thresholds.full_exit).leave(np.array(thresholds.bars))
    latency_ms_E = held_out.latency_ms_E
    return Policy(thresholds.measure, losses_N, latency_ms_E[taken_N], latency_ms_E[thresholds.full_exit])


def temperature(logits_NK: np.ndarray, labels_N: np.ndarray) -> float:
    """With the least cross-entropy. Source: Guo et al., "On calibration of modern neural networks" (ICML 2017)."""
    logits_NK = logits_NK - logits_NK.max(1, keepdims=True)

    def cross_entropy(log_temperature: float) -> float:
        scaled = logits_NK / np.exp(log_temperature)
        return float(np.mean(np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(labels_N)), labels_N]))

    return float(np.exp(minimize_scalar(cross_entropy, bounds=(-3, 3), method="bounded").x))


def calibrated(held_out: HeldOut, pool: Pool, settings: PromiseSettings, _: np.random.Generator) -> Policy:
    """Thresholds by calibrated probability alone, applied to the pool."""
    full_exit = int(held_out.right_NE.mean(0).argmax())
    latency_ms_E = held_out.latency_ms_E[: full_exit + 1]
    scales_E = [temperature(held_out.logits_NEK[:, place], held_out.labels_N) for place in range(full_exit + 1)]

    def probabilities(images: HeldOut) -> np.ndarray:
        scaled = images.logits_NEK[:, : full_exit + 1] / np.array(scales_E)[:, None]
        return trace(MEASURES["top_probability"], scaled)[1]

    known_NE = probabilities(held_out)
    predicted = ExitAnswers(known_NE, known_NE[:, full_exit:] - known_NE)
    path_SF = find_path(predicted, latency_ms_E)
    kept = [predicted.leave(bars_F)[1].mean() <= settings.epsilon for bars_F in path_SF]
    bars_F = path_SF[max(0, kept.index(False) - 1) if False in kept else -1]
    taken_N = exits_taken(probabilities(pool.images), bars_F.tolist())
    right_NE = pool.images.right_NE
    losses_N = right_NE[:, full_exit] - right_NE[np.arange(len(taken_N)), taken_N]
    return Policy("calibrated", losses_N, latency_ms_E[taken_N], latency_ms_E[-1])


METHODS: dict[str, Callable[..., Policy]] = {"tested": tested, "calibrated probability": calibrated}


def judged(images: HeldOut, count: int, settings: PromiseSettings, splits: int) -> list[dict[str, Any]]:
    """A row for each method."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in METHODS}
    pool, everything = Pool(images), np.arange(len(images))
    for seed in track(range(splits), f"{count} images held out"):
        rng = np.random.default_rng(seed)
        without = rng.permutation(len(images))
        for way, drawn, judging in (
            ("on the rest", without[:count], without[count:]),
            ("in truth", rng.choice(everything, count), everything),
        ):
            for name, method in METHODS.items():
                policy = method(images.rows(drawn), pool, settings, np.random.default_rng(seed))
                lost = float(policy.losses_N[judging].mean())
                saved = 1 - float(policy.latencies_N[judging].mean()) / policy.full_ms
                found[name].append({"way": way, "lost": lost, "saved": saved, "measure": policy.measure})
    return [_row(name, rows, count, settings) for name, rows in found.items()]


def _row(name: str, rows: list[dict[str, Any]], count: int, settings: PromiseSettings) -> dict[str, Any]:
    ways = {way: [row for row in rows if row["way"] == way] for way in ("on the rest", "in truth")}
    measures = [row["measure"] for row in rows]
    return {
        "method": name,
        "held_out": count,
        "splits": len(ways["in truth"]),
        **{
            f"broken {way}": float(np.mean([row["lost"] > settings.epsilon for row in those]))
            for way, those in ways.items()
        },
        "lost, mean": float(np.mean([row["lost"] for row in rows])),
        "lost, worst": max(row["lost"] for row in ways["in truth"]),
        "latency saved": float(np.mean([row["saved"] for row in rows])),
        "measures": {each: measures.count(each) / len(measures) for each in sorted(set(measures))},
    }


def show(rows: list[dict[str, Any]]) -> None:
    """One line for each method and number of images."""
    table = Table(*rows[0])
    for row in rows:
        measures = ", ".join(f"{name} {share:.0%}" for name, share in row["measures"].items())
        shares = [f"{value:.1%}" for value in row.values() if isinstance(value, float)]
        table.add_row(row["method"], str(row["held_out"]), str(row["splits"]), *shares, measures)
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE.npz")
    parser.add_argument("--held-out", type=int, nargs="+", default=[1000, 2000, 4000])
    parser.add_argument("--epsilon", type=float, default=0.01)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--choosing-share", type=float, default=PromiseSettings().choosing_share)
    parser.add_argument("--splits", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    stored = np.load(options.file)
    images = HeldOut(logits_NEK=stored["logits"], labels_N=stored["labels"], latency_ms_E=stored["latency_ms"])
    for place, (right, ms) in enumerate(zip(images.right_NE.mean(0), images.latency_ms_E, strict=True)):
        print(f"exit {place}: accuracy {right:.2%}, {ms:.2f} ms")
    settings = PromiseSettings(
        epsilon=options.epsilon, confidence=options.confidence, choosing_share=options.choosing_share
    )
    rows = [row for count in options.held_out for row in judged(images, count, settings, options.splits)]
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
