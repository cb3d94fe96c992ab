"""Loads that come and go as often as decisions are made: switches, and requests in time beside the best that never changes.

    python -m benchmarks.oscillation --bundle DIR [--seconds 120] [--requests-per-s 12] [--slack 2.5] [--most-per-minute 60]
        [--after 0] [--copies 1] [--cores 2] [--markdown] [--json FILE]

Square waves with periods from half the time between samples of the device to five times as long; load makes all rows 1.5, 3
or 6 times slower for a fifth, a half or four fifths of a period. The rows are those of the bundle, in its own format; each
request has --slack times the quiet latency of the largest. The model decides before each request, as a model that adapts
does. *Static*: of all rows the one that, always run, has the highest accuracy over all requests, late ones wrong; it knows
the wave. A row of the table is all waves of one period: means, and the worst wave. *Lost*: points below the static row; the
worst is negative where ours is ahead of it everywhere. --after S: requests of the first S seconds, in which a load comes for
the first times, do not count, for either.

With --copies 2 two services with a loop each are on one device, and get their requests at the same moments. All processes have
an equal share of --cores cores: a service is slower while another one runs a request, which no loop knows. A row then has
the waves of all copies. *Static* is the one row that all of them always run.

Bars: never more switches in a minute than allowed; in time no less than the static row.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy import ChoiceLimits, ChoicePolicy, MostAccurate, Switching, VariantLookUp, VariantTable
from benchmarks.simulation import SimulatedOutcome, SimulatedRequests, Simulation, run_together
from benchmarks.simulation.published import FixedChoice
from benchmarks.simulation.requests import square_wave
from benchmarks.tables import show

PERIODS_S = (0.5, 0.95, 1.0, 1.05, 2.0, 5.0)
SLOW_DOWNS, SHARES, PHASES = (1.5, 3.0, 6.0), (0.2, 0.5, 0.8), (0.0, 0.3)
PERCENT = 100


class Wave(NamedTuple):
    """Ours beside the best row that never changes: shares of requests in time, accuracies with late answers wrong.

    switches_per_minute: of a wave shorter than a minute all of them.
    """

    period_s: float
    attainment: float
    static_attainment: float
    accuracy: float
    static_accuracy: float
    switches_per_minute: float


def waves(table: VariantTable, options: argparse.Namespace) -> list[Wave]:
    """All of them, of each copy."""
    budget_ms = options.slack * max(zip(table.accuracy, table.latency_ms, strict=True))[1]
    best = MostAccurate(VariantLookUp(table))
    policy = Switching(best, most_per_minute=options.most_per_minute)
    found = []
    for period_s, slow_down, busy, phase in product(PERIODS_S, SLOW_DOWNS, SHARES, PHASES):
        trace = square_wave(
            period_s=period_s,
            busy=busy,
            slow_down=slow_down,
            phase=phase,
            duration_s=options.seconds,
            requests_per_s=options.requests_per_s,
            classes=table.load_classes,
        )
        drawn = [SimulatedRequests.drawn(table, trace, seed=copy) for copy in range(options.copies)]
        services = [Simulation(requests=one, limits=ChoiceLimits(budget_ms=budget_ms)) for one in drawn]
        ours = played(services, policy, options)
        once = [replace(one, every_s=inf) for one in services]
        statics = (played(once, FixedChoice(best, row), options) for row in range(len(table)))
        static = max(statics, key=lambda copies: sum(one.accuracy for one in copies))
        found += [
            Wave(
                period_s,
                own.attainment,
                fixed.attainment,
                own.accuracy,
                fixed.accuracy,
                own.switches / max(1.0, options.seconds / 60),
            )
            for own, fixed in zip(ours, static, strict=True)
        ]
    return found


def played(services: Sequence[Simulation], policy: ChoicePolicy, options: argparse.Namespace) -> list[SimulatedOutcome]:
    """All copies under one policy, each with a state of its own: what counts of them."""
    found = run_together(services, [policy] * len(services), options.cores)
    return [counted(one, service.requests, options.after) for one, service in zip(found, services, strict=True)]


def counted(outcome: SimulatedOutcome, requests: SimulatedRequests, after_s: float) -> SimulatedOutcome:
    """What became of the requests that came after so many seconds."""
    counts_R = requests.trace.arrivals_s_R >= after_s
    values = (outcome.ends_R[counts_R], outcome.accuracy_R[counts_R], outcome.latency_ms_R[counts_R])
    ends_R, accuracy_R, latency_ms_R = values
    return replace(outcome, ends_R=ends_R, accuracy_R=accuracy_R, latency_ms_R=latency_ms_R, rows_R=None)


def cells(found: Sequence[Wave]) -> list[list[str]]:
    """A row for each period."""
    rows = []
    for period_s in PERIODS_S:
        ours_6N = np.array([one for one in found if one.period_s == period_s]).T
        _, in_time_N, static_N, accuracy_N, static_accuracy_N, switches_N = ours_6N
        rows.append(
            [
                f"{period_s:g} s",
                f"{in_time_N.mean():.2%}",
                f"{static_N.mean():.2%}",
                f"{(static_N - in_time_N).max() * PERCENT:.1f}",
                f"{accuracy_N.mean():.2%}",
                f"{static_accuracy_N.mean():.2%}",
                f"{(static_accuracy_N - accuracy_N).max() * PERCENT:.1f}",
                f"{switches_N.max():.1f}",
            ]
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each wave")
    parser.add_argument("--requests-per-s", type=float, default=12.0)
    parser.add_argument("--slack", type=float, default=2.5)
    parser.add_argument("--most-per-minute", type=int, default=60)
    parser.add_argument("--after", type=float, default=0.0, metavar="S", help="seconds that do not count")
    parser.add_argument("--copies", type=int, default=1, help="of the loop on one device")
    parser.add_argument("--cores", type=int, default=2, help="that copies and load share")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    manifest = BundleManifest.from_json((options.bundle / BUNDLE_FILE).read_bytes(), str(options.bundle))
    found = waves(BundleVariants.of(manifest, manifest.own_format).table, options)
    heads = ["period", "in time", "static", "lost at most", "accuracy, late = wrong", "static", "lost at most"]
    show([*heads, "switches a minute, at most"], cells(found), markdown=options.markdown)
    behind = sum(one.attainment < one.static_attainment for one in found)
    many = sum(one.switches_per_minute > options.most_per_minute for one in found)
    print(f"{len(found)} waves; more switches than allowed: {many}; fewer in time than the static row: {behind}")
    if options.json:
        options.json.write_text(json.dumps([one._asdict() for one in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
