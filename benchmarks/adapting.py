"""A bundle that adapts under real load: after steps, on traces beside other policies, and what deciding takes.

    python -m benchmarks.adapting --work DIR [--stages bundles steps load cost] [--runtimes onnxruntime ncnn] [--steps 50]
        [--minutes 10] [--patterns steps random user] [--budget-share 0.5] [--near 27] [--quantile 0.99] [--images 8]
        [--markdown] [--json FILE] [OVERRIDE …]

The bundles are those of DIR/exports/RUNTIME/bundle. Where these are not there, a SuperNet of ResNet-26 learns ten characters
of glyphs, and `autotailor export` writes them; OVERRIDEs go there. Load is made by processes that compute and processes that
stream through memory (`adaptive_runtime.state.traces.Stress`; --cpu-processes, --bandwidth-processes). Nothing else should run.

*steps*: a model that adapts serves one request after another, 20 ms between them; its budget is --slack times the quiet latency
of the largest SubNet. Every --step-s seconds the load steps up (CPU, memory bandwidth or both) or down. *Back*: from the step
until the last late request before five in time was answered. Bars: p95 at most 1 s, no request lost.

*load*: traces of each pattern. Every request, of --images images, is served by all policies and by one variant alone, another
one for each request; they take turns with 20 ms between, so that all have the same load. Images run one by one: ours looks at
the time left before each, the others decide once for a request. AdaScale's bands are measured before, on another trace of the
pattern, which also sets the budget: --budget-share of the mean latency of the largest there. *Accuracy*: late answers wrong;
*served*: of the answers in time. *Best static*: the most accurate variant alone that is in time as often as ours. *Clairvoyant
of the load*: for each request the most accurate variant whose latency is within the budget by 2.33 deviations (99 %), by what
it took for the --near requests before and after, but the next one, which tells how it did: it knows the load and its scatter,
and nothing that single requests meet. *Clairvoyant*: the most accurate variant that is in time where it serves next to the
request, by luck, too. Bars: mean latency 60 % below the largest at most 5.2 points below its accuracy; 99 % in time where the
largest has at most 60 %; served accuracy within a point of the clairvoyant of the load, accuracy above the best static.

*cost*: CPU time of a process that senses, hears of ten requests a second and decides before each, and the memory that it has
more of its own than before; a decision after the pause between two requests, when caches are cold, and one of many in a row
(medians). Bars: 2 % of a core; 40 MiB; a decision 200 µs after a pause and 100 µs in a row.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

import adaptive_runtime
from adaptive_runtime import AdaptingOptions
from adaptive_runtime.model.adapting import Adaptation
from adaptive_runtime.model.estimate import ServedRun
from adaptive_runtime.model.variants import BundleVariants, load_classes
from adaptive_runtime.policy import ChoiceLimits, VariantTable
from adaptive_runtime.policy.lookup import deviations
from adaptive_runtime.pool import Variant
from benchmarks.adapting_runs import (
    LARGEST,
    OURS,
    Compared,
    Served,
    StressKind,
    drawn,
    fixed,
    form_of,
    policies_of,
    statics_of,
    stepped,
)
from benchmarks.tables import show
from profiling_agents.messages import MIB

RUNTIMES = ("onnxruntime", "ncnn")
STAGES = ("bundles", "steps", "load", "cost")
TRAINED = (
    "data=glyphs",
    "data.images=4000",
    "data.classes=10",
    "data.resolution=80",
    "data.workers=1",
    "model=timm",
    "model.name=resnet26",
    "base.processes=1",
    "base.epochs=6",
    "base.learning_rate=0.002",
    "finetune.processes=1",
    "finetune.epochs=12",
    "finetune.learning_rate=0.002",
    "space.resolution=[40,60,80]",
    "space.width_mult=auto",
    "space.depth=auto",
    "space.expand_ratio=auto",
    "search=exact",
    "export.bundle=true",
)
BACK_S, SAVED, LOST_POINTS, IN_TIME, LARGEST_IN_TIME, NEAR_POINTS = 1.0, 0.6, 5.2, 0.99, 0.6, 1.0
CORE_PERCENT, MEMORY_MIB, DECISION_US, IN_A_ROW_US = 2.0, 40.0, 200.0, 100.0
OF_LOAD = "clairvoyant of the load"
VARIANTS, REQUESTS_PER_S, IN_A_ROW = 64, 10, 1000
EARLIER_SHARE, LEAST_EARLIER_S = 0.2, 20.0


def bundles(work: Path, runtimes: Sequence[str], words: Sequence[str]) -> dict[str, Path]:
    """The bundle of each runtime, trained and exported where it is not there."""
    found = {name: work / "exports" / name / "bundle" for name in runtimes}
    if not all((folder / "bundle.json").exists() for folder in found.values()):
        command = [sys.executable, "-m", "flows.cli", "export", f"output_dir={work.resolve()}", *TRAINED, *words]
        done = subprocess.run([*command, f"device=[{','.join(runtimes)}]"], check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
    return found


def loaded(folder: Path, runtime: str, pattern: Any, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of all policies on one pattern."""
    stress = StressKind(options.cpu_processes, options.bandwidth_processes)
    seconds = 60 * options.minutes
    with adaptive_runtime.load(folder, format=form_of(runtime)) as model:
        first = Compared(model, runtime, ChoiceLimits(budget_ms=1e6, quantile=options.quantile), options.images)
        earlier = drawn(pattern, 100, max(LEAST_EARLIER_S, EARLIER_SHARE * seconds), options.requests_per_s)
        before, loads = first.run(earlier, stress, {}, {LARGEST: first.adaptation(fixed(first.largest))})
        budget_ms = options.budget_share * float(np.mean(before[LARGEST].latency_ms))
        predicted_ms = first.variants.table.latency_ms[first.largest]
        run_ms_RI = np.array(before[LARGEST].run_ms).reshape(len(loads), -1)
        ratios = (run_ms_RI.mean(1) / predicted_ms).tolist()
        compared = Compared(
            model, runtime, ChoiceLimits(budget_ms=budget_ms, quantile=options.quantile), options.images
        )
        trace = drawn(pattern, 0, seconds, options.requests_per_s)
        policies = policies_of(compared, loads, ratios)
        found, _ = compared.run(trace, stress, policies, statics_of(compared))
    table = compared.variants.table
    alone = [found[name] for name in table.names]
    best = bounds(found[OURS], alone, table, budget_ms, options.near)
    served = {name: found[name] for name in policies} | {LARGEST: alone[compared.largest]} | best
    rows = [row_of(name, one, table, budget_ms, seconds) for name, one in served.items()]
    return [{"runtime": runtime, "pattern": pattern, "budget_ms": budget_ms, **row} for row in rows]


def row_of(name: str, served: Served, table: VariantTable, budget_ms: float, seconds: float) -> dict[str, Any]:
    """What the table shows of one policy."""
    latency_ms_R, rows_RI = np.array(served.latency_ms), np.array(served.rows).reshape(len(served.latency_ms), -1)
    accuracy_R, in_time_R = table.accuracy_V[rows_RI].mean(1), latency_ms_R <= budget_ms
    return {
        "policy": name,
        "attainment": float(in_time_R.mean()),
        "accuracy": float((accuracy_R * in_time_R).mean()),
        "served_accuracy": float(accuracy_R[in_time_R].mean()) if in_time_R.any() else 0.0,
        "mean_accuracy": float(accuracy_R.mean()),
        "mean_ms": float(latency_ms_R.mean()),
        "p95_ms": float(np.quantile(latency_ms_R, 0.95)),
        "switches_per_minute": float((np.diff(served.rows) != 0).sum() * 60 / seconds),
        "decision_us": float(np.median(served.decision_us)) if served.decision_us else None,
    }


def bounds(
    ours: Served, alone: Sequence[Served], table: VariantTable, budget_ms: float, near: int
) -> dict[str, Served]:
    """The best static variant and both clairvoyants, by what every variant `alone` has served."""
    attained_V = np.array([np.mean(np.array(one.latency_ms) <= budget_ms) for one in alone])
    ours_attained = float((np.array(ours.latency_ms) <= budget_ms).mean())
    enough = np.flatnonzero(attained_V >= ours_attained).tolist() or [int(attained_V.argmax())]
    static = max(enough, key=lambda row: table.accuracy_V[row] * attained_V[row])
    numbers_R = np.array(ours.numbers)
    next_ms_RV = np.empty((len(numbers_R), len(alone)))
    calm_RV = np.empty(next_ms_RV.shape, dtype=bool)
    for row, one in enumerate(alone):
        latency_ms_A = np.array(one.latency_ms)
        apart_RA = abs(numbers_R[:, None] - np.array(one.numbers))
        nearest_R = apart_RA.argmin(1)
        next_ms_RV[:, row] = latency_ms_A[nearest_R]
        apart_RA[np.arange(len(nearest_R)), nearest_R] = near + 1
        near_ms_RA = np.where(apart_RA <= near, latency_ms_A, np.nan)
        high_ms_R = np.nanmean(near_ms_RA, 1) + deviations(IN_TIME) * np.nanstd(near_ms_RA, 1, ddof=1)
        calm_RV[:, row] = high_ms_R <= budget_ms

    def most_accurate(within_RV: NDArray[np.bool_]) -> Served:
        best_R = np.where(within_RV, table.accuracy_V, -1.0).argmax(1)
        rows_R = np.where(within_RV.any(1), best_R, int(table.latency_ms_V.argmin()))
        latency_ms_R = next_ms_RV[np.arange(len(rows_R)), rows_R]
        return Served(ours.numbers, latency_ms_R.tolist(), rows_R.tolist())

    return {
        f"best static ({table.names[static]})": alone[static],
        OF_LOAD: most_accurate(calm_RV),
        "clairvoyant": most_accurate(next_ms_RV <= budget_ms),
    }


def spent(answer: Connection, seconds: float) -> None:
    """Sends what sensing and deciding take: % of a core, MiB, and median µs of a decision, after a pause and in a row."""
    rng = np.random.default_rng(0)
    names = tuple(f"{number:016x}" for number in range(VARIANTS))
    latency_ms = tuple(np.linspace(1, 50, VARIANTS).tolist())
    accuracy = tuple(np.linspace(0.6, 0.9, VARIANTS).tolist())
    classes = load_classes(latency_ms)
    table = VariantTable(names=names, accuracy=accuracy, latency_ms=latency_ms, load_class=classes)
    variants = BundleVariants(tuple(map(Variant, names)), table)
    before_bytes = own_bytes()
    adaptation = Adaptation(variants, ChoiceLimits(budget_ms=30.0), AdaptingOptions())
    adaptation.start()
    time.sleep(2)
    start_s, start_cpu_s, decision_us = time.monotonic(), time.process_time(), []
    while time.monotonic() - start_s < seconds:
        time.sleep(1 / REQUESTS_PER_S)
        start_ns = time.perf_counter_ns()
        row = adaptation.choose().variant
        decision_us.append((time.perf_counter_ns() - start_ns) / 1e3)
        load = 1.5 + np.sin(time.monotonic() / 5)
        run_ms = latency_ms[row] * load * float(np.exp(0.05 * rng.normal()))
        adaptation.served([ServedRun(variants.variants[row], ("last",), run_ms)])
    percent = 100 * (time.process_time() - start_cpu_s) / (time.monotonic() - start_s)
    memory_mib = (own_bytes() - before_bytes) / MIB
    adaptation.stop()
    in_a_row_us = []
    for _ in range(IN_A_ROW):
        start_ns = time.perf_counter_ns()
        adaptation.choose()
        in_a_row_us.append((time.perf_counter_ns() - start_ns) / 1e3)
    answer.send((percent, memory_mib, float(np.median(decision_us)), float(np.median(in_a_row_us))))


def own_bytes() -> int:
    """Memory that this process alone has."""
    return int(psutil.Process().memory_full_info().uss)


def cost(seconds: float) -> dict[str, float]:
    """CPU time of a process of its own."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=spent, args=(there, seconds))
    process.start()
    percent, memory_mib, decision_us, in_a_row_us = here.recv()
    process.join()
    found = {"core_percent": percent, "memory_mib": memory_mib}
    return found | {"decision_us": decision_us, "in_a_row_us": in_a_row_us}


def show_steps(rows: list[dict[str, Any]], *, markdown: bool) -> None:
    """A line for each runtime."""
    heads = ("runtime", "budget, ms", "steps", "back, p50, s", "back, p95, s", "in time under load", "requests", "lost")
    lines = [
        [
            row["runtime"],
            f"{row['budget_ms']:.1f}",
            f"{row['steps']}",
            f"{row['back_p50_s']:.2f}",
            f"{row['back_p95_s']:.2f}",
            f"{row['attainment']:.1%}",
            f"{row['requests']}",
            f"{row['lost']}",
            f"{row['switches_per_minute']:.1f}",
            "yes" if row["back_p95_s"] <= BACK_S and not row["lost"] else "NO",
        ]
        for row in rows
    ]
    show((*heads, "switches a minute", "holds"), lines, markdown=markdown)


def holds(rows: list[dict[str, Any]], ours: dict[str, Any]) -> str:
    """Which bars ours misses on a trace."""
    of = {row["policy"].split(" (")[0]: row for row in rows}
    largest, best, static = of[LARGEST], of[OF_LOAD], of["best static"]
    bars = {
        "latency": ours["mean_ms"] <= (1 - SAVED) * largest["mean_ms"],
        "points": 100 * (largest["mean_accuracy"] - ours["mean_accuracy"]) <= LOST_POINTS,
        "in time": ours["attainment"] >= IN_TIME and largest["attainment"] <= LARGEST_IN_TIME,
        "clairvoyant": 100 * (best["served_accuracy"] - ours["served_accuracy"]) <= NEAR_POINTS,
        "static": ours["accuracy"] > static["accuracy"],
    }
    return ", ".join(f"NO: {name}" for name, held in bars.items() if not held) or "yes"


def show_load(rows: list[dict[str, Any]], *, markdown: bool) -> None:
    """A line for each policy on each trace."""
    heads = ["runtime", "load", "budget, ms", "policy", "in time", "accuracy", "served", "mean, ms", "p95, ms"]
    lines = []
    for row in rows:
        mine = [other for other in rows if (other["runtime"], other["pattern"]) == (row["runtime"], row["pattern"])]
        largest_ms = next(other["mean_ms"] for other in mine if other["policy"] == LARGEST)
        lines.append(
            [
                row["runtime"],
                row["pattern"],
                f"{row['budget_ms']:.1f}",
                row["policy"],
                f"{row['attainment']:.2%}",
                f"{row['accuracy']:.2%}",
                f"{row['served_accuracy']:.2%}",
                f"{row['mean_ms']:.1f}",
                f"{row['p95_ms']:.1f}",
                f"{row['mean_ms'] / largest_ms - 1:+.0%}",
                f"{row['switches_per_minute']:.1f}",
                holds(mine, row) if row["policy"] == OURS else "",
            ]
        )
    show([*heads, "to the largest", "switches a minute", "holds"], lines, markdown=markdown, width=200)


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-s", type=float, default=4.0)
    parser.add_argument("--slack", type=float, default=1.5)
    parser.add_argument("--budget-share", type=float, default=0.5)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--patterns", nargs="+", default=["steps", "random", "user"])
    parser.add_argument("--requests-per-s", type=float, default=3.0)
    parser.add_argument("--near", type=int, default=27)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--cpu-processes", type=int, default=4)
    parser.add_argument("--bandwidth-processes", type=int, default=2)
    parser.add_argument("--quantile", type=float, default=0.99)
    parser.add_argument("--cost-s", type=float, default=60.0)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    stress = StressKind(options.cpu_processes, options.bandwidth_processes)
    folders = {} if options.stages == ["cost"] else bundles(options.work, options.runtimes, options.overrides)
    result: dict[str, Any] = {}
    if "steps" in options.stages:
        given = (options.steps, options.step_s, stress, options.quantile, options.slack)
        result["steps"] = [{"runtime": name, **stepped(folder, name, *given)} for name, folder in folders.items()]
        show_steps(result["steps"], markdown=options.markdown)
    if "load" in options.stages:
        result["load"] = [
            row
            for name, folder in folders.items()
            for pattern in options.patterns
            for row in loaded(folder, name, pattern, options)
        ]
        show_load(result["load"], markdown=options.markdown)
    if "cost" in options.stages:
        result["cost"] = cost(options.cost_s)
        percent, memory_mib, decision_us, in_a_row_us = result["cost"].values()
        quick = decision_us <= DECISION_US and in_a_row_us <= IN_A_ROW_US
        held = percent <= CORE_PERCENT and memory_mib <= MEMORY_MIB and quick
        line = [
            f"{percent:.2f}",
            f"{memory_mib:.1f}",
            f"{decision_us:.0f}",
            f"{in_a_row_us:.0f}",
            "yes" if held else "NO",
        ]
        show(("% of a core", "MiB", "decision, µs", "in a row, µs", "holds"), [line], markdown=options.markdown)
    options.work.mkdir(parents=True, exist_ok=True)
    (options.json or options.work / "adapting.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
