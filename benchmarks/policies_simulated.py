"""Policies of switching on long simulated traces, beside the largest variant, the best static one and a clairvoyant.

    python -m benchmarks.policies_simulated [--minutes 60] [--variants 40] [--json FILE] [--markdown]

One hour by default of each pattern of load (`adaptive_runtime.state.traces`), on a simulated server with a queue: 10
requests a second at a pace, each within 50 ms; load makes variants up to four times slower; the device differs from
the table by 3 %, each request by 5 %. The pool follows one curve of accuracy over latency, 5 to 45 ms without load.
All policies decide before each request, with what they may know: ours from `LoadEstimate`, as a deployed model that
adapts, at the quantile 0.99, with the trace's load; AdaptiveNet's r is the mean of the last four ratios of measured
over predicted latency; AdaScale's bands of the load index, ten of them, were measured on another trace of the same
pattern, with its accuracy within 5.2 points of the largest (its figure) and J = latency. The largest and the best
static variant are served by the same queue. The clairvoyant knows each request's slow-down and noise and has no
queue: no policy beats it. *Best static*: the most accurate variant over all requests that is in time as often as
ours, or most often.

Late and rejected requests count as wrong. Everything is seeded: the same numbers on every machine, but for the
seconds.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.model.variants import load_classes
from adaptive_runtime.policy import (
    ChoiceLimits,
    ChoicePolicy,
    Decision,
    DecisionInputs,
    LeastCost,
    MostAccurate,
    Objective,
    Switching,
    VariantLookUp,
    VariantTable,
)
from adaptive_runtime.state.traces import PATTERNS, LoadTrace, Pattern, PressureResponse, RequestArrivals, trace_of
from benchmarks.simulation import PolicyRegret, SimulatedRequests, Simulation, compare
from benchmarks.simulation.published import FixedChoice, LoadBandChoice, RatioChoice
from benchmarks.tables import show

BUDGET_MS, QUANTILE = 50.0, 0.99
REQUESTS_PER_S = 10.0
RESPONSE = PressureResponse(cpu=2.0, bandwidth=1.0)
LOST = 0.052
BANDS = 10
OURS, RATIO, LOAD_BANDS = "ours", "AdaptiveNet's ratio", "AdaScale's bands"
OFTEN = 10**6


def pool(variants: int) -> VariantTable:
    """Variants along one curve."""
    share = np.linspace(0, 1, variants)
    latency_ms = 5 * 9**share
    accuracy = 0.93 - 0.2 * np.exp(-4 * share)
    return VariantTable(
        names=tuple(f"v{number}" for number in range(variants)),
        accuracy=tuple(accuracy.tolist()),
        latency_ms=tuple(latency_ms.tolist()),
        latency_error=(0.03,) * variants,
        load_class=load_classes(latency_ms.tolist()),
    )


def requests_of(table: VariantTable, pattern: Pattern, minutes: float, seed: int) -> SimulatedRequests:
    """A trace of a pattern on one simulated device: seeds differ in load and noise alone."""
    trace = trace_of(
        pattern,
        seed=seed,
        duration_s=60 * minutes,
        responses=(RESPONSE,) * table.load_classes,
        arrivals=RequestArrivals(requests_per_s=REQUESTS_PER_S),
    )
    return SimulatedRequests.drawn(table, trace, seed=seed)


def load_bands(best: Objective, loads: Sequence[float], ratios: Sequence[float]) -> LoadBandChoice:
    """AdaScale's bands. loads, ratios: load indices and slow-downs of the largest variant, measured on another trace."""
    look_up = best.look_up
    cheap = LeastCost(look_up, 1.0, 0.0, least_accuracy=max(look_up.table.accuracy) - LOST)
    return LoadBandChoice.measured(cheap, loads, ratios, BANDS)


def policies(table: VariantTable, earlier: SimulatedRequests) -> dict[str, ChoicePolicy]:
    """Ours in four settings, the published ones, and the largest variant."""
    look_up = VariantLookUp(table)
    best = MostAccurate(look_up)
    trace: LoadTrace = earlier.trace
    loads_R = earlier.load_T[trace.at(trace.arrivals_s_R)]
    return {
        OURS: Switching(best),
        "ours, 30 switches a minute": Switching(best, most_per_minute=30),
        "ours, 6 switches a minute": Switching(best, most_per_minute=6),
        "ours, no hysteresis": Switching(best, margin=0.0, dwell_s=0.0, most_per_minute=OFTEN),
        RATIO: RatioChoice(best),
        "the same, 90 % of the budget": RatioChoice(best, share=0.9),
        LOAD_BANDS: load_bands(best, loads_R.tolist(), earlier.factor_CR[0].tolist()),
        "largest": FixedChoice(best, int(look_up.place_V.argmin())),
    }


def timed(simulation: Simulation, policy: ChoicePolicy) -> float:
    """Microseconds of a decision in a run, the simulation around it included."""
    made: list[float] = []

    def heard(inputs: DecisionInputs, decision: Decision) -> None:
        made.append(decision.now_s)

    start = time.perf_counter()
    simulation.run(policy, heard)
    return (time.perf_counter() - start) / len(made) * 1e6


def row_of(pattern: Pattern, found: PolicyRegret) -> dict[str, Any]:
    """What the table shows of one policy on one trace."""
    outcome = found.outcome
    return {
        "pattern": pattern,
        "policy": found.name,
        "attainment": outcome.attainment,
        "accuracy": outcome.accuracy,
        "served_accuracy": outcome.served_accuracy,
        "regret_points": found.regret_points,
        "mean_ms": outcome.mean_ms,
        "p50_ms": outcome.quantile_ms(0.5),
        "p95_ms": outcome.quantile_ms(0.95),
        "p99_ms": outcome.quantile_ms(0.99),
        "switches_per_minute": outcome.switches_per_minute,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--variants", type=int, default=40)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    table = pool(options.variants)
    limits = ChoiceLimits(budget_ms=BUDGET_MS, quantile=QUANTILE)
    rows = []
    for number, pattern in enumerate(PATTERNS):
        earlier = requests_of(table, pattern, min(10.0, options.minutes), seed=100 + number)
        simulation = Simulation(requests=requests_of(table, pattern, options.minutes, seed=number), limits=limits)
        named = policies(table, earlier)
        rows += [row_of(pattern, found) for found in compare(simulation, named, like=OURS)]
        print(f"{pattern}: {timed(simulation, named[OURS]):.0f} µs a decision, simulation included")
    heads = ["load", "policy", "in time", "accuracy, late = wrong", "of answers in time", "regret, points"]
    heads += ["mean, ms", "p50 / p95 / p99, ms", "switches a minute"]
    lines = [
        [
            row["pattern"],
            row["policy"],
            f"{row['attainment']:.2%}",
            f"{row['accuracy']:.2%}",
            f"{row['served_accuracy']:.2%}",
            f"{row['regret_points']:.2f}",
            f"{row['mean_ms']:.1f}",
            f"{row['p50_ms']:.1f} / {row['p95_ms']:.1f} / {row['p99_ms']:.1f}",
            f"{row['switches_per_minute']:.1f}",
        ]
        for row in rows
    ]
    show(heads, lines, markdown=options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
