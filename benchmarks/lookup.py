"""What it takes to choose a variant: a look-up with three limits, and a whole decision.

    python -m benchmarks.lookup [--variants 11 22 73 500] [--queries 2000] [--json FILE] [--markdown]

Three kinds of tables. *Realistic*: latency, energy and memory follow one size with scatter, accuracy saturates with
it. *Random*: four columns drawn apart. *Undominated*: accuracy is the mean of the three columns, so each variant is
the answer of some query.

Limits are drawn from the columns themselves. All ways answer each query in turn, in one process on one thread, and
have to agree; each query comes five times, the others in between, and its fastest answer counts, so that other
programs' work does not. The table has medians and 99th percentiles over queries [µs]. *Ours*: `VariantLookUp.best`.
*numpy*: one mask over all variants, the most accurate first. *Under load*: `VariantLookUp.under` at twice the latency,
where variants are slower by 1.5 on average. *None keeps*: the same with a budget that no variant keeps.
*Decision*: `Switching` under load, with the message and its reason, for limits
that change each time, each once; *with own factors*: ten variants have factors of their own; *and its log*: the
decision is appended to a log as well. *By score*: a decision for mu · Norm(accuracy) − (1 − mu) · Norm(energy) with
mu 0.5; *by rules*: the same by a rule, where the battery changes each time between two values of mu; *order, ms*:
the variants in the order of another mu, once for each.

Bars: a look-up in at most 10 µs, a decision in at most 100 µs, by score or rules in at most 200 µs, by the medians;
published (AdaScale): 43 µs over 480.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.policy import (
    BestScore,
    ByRules,
    ChoiceLimits,
    ChoicePolicy,
    ChoiceState,
    CriterionWeights,
    DecisionInputs,
    DecisionLog,
    DeviceContext,
    LoadFactors,
    MostAccurate,
    Objective,
    Switching,
    VariantLookUp,
    VariantTable,
    parse_rules,
)
from benchmarks.tables import show

LOOK_UP_BAR_US, DECISION_BAR_US, SCORED_BAR_US = 10.0, 100.0, 200.0
MU, CHARGES = 0.5, (0.4, 0.6)
RULES = "battery < 20% -> energy first; mu by battery"
ROUNDS, LOADED, NO_BUDGET_MS = 5, 2, 1e-3
OWN_FACTORS = 10
Limits = tuple[float, float, float]
COLUMNS = ("latency_ms", "energy_mj", "memory_mib")


def table_of(kind: str, variants: int) -> VariantTable:
    """A table of one kind."""
    rng = np.random.default_rng(variants)
    if kind == "realistic":
        size = rng.uniform(0, 1, variants)
        columns = np.stack([(1 + 30 * size) * np.exp(0.15 * rng.normal(size=variants)) for _ in COLUMNS], 1)
        accuracy = 0.95 - 0.35 * np.exp(-3 * size) - 0.01 * np.abs(rng.normal(size=variants))
    else:
        columns = 1 + 30 * rng.uniform(0, 1, (variants, 3))
        accuracy = columns.mean(1) / 31 if kind == "undominated" else rng.uniform(0, 1, variants)
    return VariantTable(
        names=tuple(f"v{number}" for number in range(variants)),
        accuracy=tuple(accuracy.tolist()),
        latency_error=(0.05,) * variants,
        **{name: tuple(column.tolist()) for name, column in zip(COLUMNS, columns.T, strict=True)},
    )


def limits_of(table: VariantTable, queries: int) -> list[Limits]:
    """Limits drawn from the columns, each apart."""
    rng = np.random.default_rng(1)
    drawn = [rng.choice(np.array(getattr(table, name)), queries) for name in COLUMNS]
    return [(float(a), float(b), float(c)) for a, b, c in zip(*drawn, strict=True)]


def by_numpy(table: VariantTable) -> Callable[[float, float, float], int | None]:
    """One mask over all variants, the most accurate first."""
    order = np.argsort(VariantLookUp(table).place_V)
    a_V, b_V, c_V = (np.array(getattr(table, name))[order] for name in COLUMNS)

    def best(a: float, b: float, c: float) -> int | None:
        within_V: NDArray[np.bool_] = (a_V <= a) & (b_V <= b) & (c_V <= c)
        row = int(within_V.argmax())
        return int(order[row]) if within_V[row] else None

    return best


def ways_of(table: VariantTable, look_up: VariantLookUp) -> dict[str, Callable[[float, float, float], int | None]]:
    """Look-ups by their names; the first two have to agree."""
    factors = LoadFactors(mean=(1.5,), deviation=(0.1,))

    def under(limits: ChoiceLimits) -> int:
        return look_up.under(limits, factors).variant

    known: dict[Limits, tuple[ChoiceLimits, ChoiceLimits]] = {}

    def limits(a: float, b: float, c: float) -> tuple[ChoiceLimits, ChoiceLimits]:
        if (a, b, c) not in known:
            each = ChoiceLimits(budget_ms=LOADED * a, energy_mj=b, memory_mib=c)
            known[a, b, c] = each, each.model_copy(update={"budget_ms": NO_BUDGET_MS})
        return known[a, b, c]

    return {
        "ours": look_up.best,
        "numpy": by_numpy(table),
        "under load": lambda *asked: under(limits(*asked)[0]),
        "none keeps": lambda *asked: under(limits(*asked)[1]),
    }


def look_ups(table: VariantTable, look_up: VariantLookUp, queries: Sequence[Limits]) -> dict[str, NDArray[np.float64]]:
    """Durations of each query by each way [µs]. Ours and numpy agree."""
    ways = ways_of(table, look_up)
    least = {name: np.full(len(queries), np.inf) for name in ways}
    for _ in range(ROUNDS):
        for number, limits in enumerate(queries):
            answers = {}
            for name, best in ways.items():
                start = time.perf_counter_ns()
                answers[name] = best(*limits)
                least[name][number] = min(least[name][number], (time.perf_counter_ns() - start) / 1e3)
            assert answers["ours"] == answers["numpy"], f"{limits}: {answers}"
    return least


def switching(objective: Objective) -> ChoicePolicy:
    """A policy that may switch each time."""
    return Switching(objective, dwell_s=0.0, most_per_minute=10**6)


def decisions(
    look_up: VariantLookUp, policy: ChoicePolicy, queries: Sequence[Limits], own: int = 0, log: Path | None = None
) -> NDArray[np.float64]:
    """Durations of decisions under load [µs], inputs made before."""
    rng = np.random.default_rng(2)
    apart = rng.choice(len(look_up.table), min(own, len(look_up.table)), replace=False).tolist()
    state, durations = ChoiceState(), []
    written = None if log is None else DecisionLog(log, look_up.table, state)
    for number, (latency_ms, energy_mj, memory_mib) in enumerate(queries):
        limits = ChoiceLimits(budget_ms=2 * latency_ms, energy_mj=energy_mj, memory_mib=memory_mib)
        factors = LoadFactors(
            mean=(float(rng.uniform(1, 3)),),
            deviation=(0.1,),
            own={each: (float(rng.uniform(1, 3)), 0.1) for each in apart},
        )
        device = DeviceContext(battery=CHARGES[number % 2]) if isinstance(policy, ByRules) else None
        inputs = DecisionInputs(now_s=float(number), limits=limits, factors=factors, device=device)
        start = time.perf_counter_ns()
        decision = policy(state, inputs)
        state = decision.after
        if written is not None:
            written.append(inputs, decision)
        durations.append((time.perf_counter_ns() - start) / 1e3)
    return np.array(durations)


def measured(kind: str, variants: int, queries: int) -> dict[str, Any]:
    """One row: a kind and number of variants."""
    table = table_of(kind, variants)
    start = time.perf_counter()
    look_up = VariantLookUp(table)
    build_ms = (time.perf_counter() - start) * 1e3
    asked = limits_of(table, queries)
    times = look_ups(table, look_up, asked)
    with tempfile.TemporaryDirectory() as folder:
        best = switching(MostAccurate(look_up))
        times["decision"] = decisions(look_up, best, asked)
        times["with own"] = decisions(look_up, best, asked, OWN_FACTORS)
        times["and log"] = decisions(look_up, best, asked, OWN_FACTORS, Path(folder) / "decisions.jsonl")
    start = time.perf_counter()
    scored = BestScore.of(look_up, CriterionWeights.of_mu(MU))
    order_ms = (time.perf_counter() - start) * 1e3
    times["by score"] = decisions(look_up, switching(scored), asked)
    ruled = ByRules(parse_rules(RULES), look_up, switching)
    decisions(look_up, ruled, asked[: len(CHARGES)])  # makes both orders
    times["by rules"] = decisions(look_up, ruled, asked)
    row: dict[str, Any] = {"kind": kind, "variants": variants, "kept": look_up.kept, "build_ms": build_ms}
    row["order_ms"] = order_ms
    for name, values in times.items():
        row[name] = {"p50_us": float(np.median(values)), "p99_us": float(np.quantile(values, 0.99))}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, nargs="+", default=[11, 22, 73, 500])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    kinds = ("realistic", "random", "undominated")
    rows = [measured(kind, variants, options.queries) for variants in options.variants for kind in kinds]
    heads = ["variants", "kind", "kept", "build, ms", "ours, µs", f"<= {LOOK_UP_BAR_US:g}", "numpy, µs"]
    heads += [
        "under load, µs",
        "none keeps, µs",
        "decision, µs",
        "with own factors",
        "and its log",
        f"<= {DECISION_BAR_US:g}",
        "order, ms",
        "by score, µs",
        "by rules",
        f"<= {SCORED_BAR_US:g}",
    ]
    show(heads, [cells_of(row) for row in rows], markdown=options.markdown, width=200)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def cells_of(row: dict[str, Any]) -> list[str]:
    """A line of the table."""
    both = {
        name: f"{row[name]['p50_us']:.3g} ({row[name]['p99_us']:.3g})" for name in row if isinstance(row[name], dict)
    }
    held = row["ours"]["p50_us"] <= LOOK_UP_BAR_US, row["and log"]["p50_us"] <= DECISION_BAR_US
    fast, quick = ("yes" if each else "NO" for each in held)
    in_time = all(row[name]["p50_us"] <= SCORED_BAR_US for name in ("by score", "by rules"))
    first = [f"{row['variants']}", row["kind"], f"{row['kept']}", f"{row['build_ms']:.3g}"]
    last = [both["under load"], both["none keeps"], both["decision"], both["with own"], both["and log"], quick]
    last += [f"{row['order_ms']:.3g}", both["by score"], both["by rules"], "yes" if in_time else "NO"]
    return [*first, both["ours"], fast, both["numpy"], *last]


if __name__ == "__main__":
    main()
