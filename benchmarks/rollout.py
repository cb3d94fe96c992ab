"""Roll-outs of bundles over a simulated fleet: how many devices a worse one reaches, and how often a good one is halted.

    python -m benchmarks.rollout [--devices 1000] [--repetitions 500] [--json FILE] [--markdown] [--picture FILE.svg]

Each repetition is a fleet of its own (`benchmarks.rollout_fleet`): five kinds of devices with lognormal latencies, load that
wanders, days in three time zones, slow changes of what devices see, requests that differ 50-fold between devices; 5 % of the
devices tell nonsense, 2 % of all windows are lost. `tasks.operations.fleet.decision` decides with its default settings,
after each hour, by sums alone. Nothing of the simulation is known to it.

*Halted*: roll-outs that were halted; *at 1 %*: in the first stage. *Had it*: the largest share of the devices that had the
bundle in a roll-out that was halted. *All*: roll-outs that reached all devices. *Asked*: those that waited for a person after
the most windows of a stage. Hours are of the roll-out, without those before it. Intervals are exact (Clopper–Pearson), 95 %.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.rollout_fleet import KINDS, BundleChange, SimulatedFleet
from benchmarks.tables import show
from tasks.operations.fleet.decision import StagePlan, StageTest, TelemetrySums, draw_stage, losses
from tasks.operations.fleet.settings import MEASURES, RolloutSettings

AT_ONCE = 50
LAST_H = 144
"""Hours of both stages, at most."""
ASKED, HALTED, ALL = "asked", "halted", "all"
CHANGES = {
    "equal": BundleChange(),
    "better: 10 % faster, 1 point surer": BundleChange(latency=0.9, confidence=-0.01, accuracy=-0.01),
    "as much worse as is tolerated": BundleChange(latency=1.05, confidence=0.005, accuracy=0.005),
    "20 % slower": BundleChange(latency=1.2),
    "2 points less sure": BundleChange(confidence=0.02, accuracy=0.02),
    "2 points less accurate, as sure as before": BundleChange(accuracy=0.02),
    "silent in 30 % of the windows": BundleChange(silent=0.3),
    "50 % slower on cameras alone": BundleChange(latency=1.5, kind="camera"),
}


class PlayedRollout(NamedTuple):
    """ended: how. stage: in which, from 0 on. devices: share that had the bundle then. hours: since the first device had it.
    measure: that was worse.
    """

    ended: str
    stage: int
    devices: float
    hours: int
    measure: str


class _Chunk:
    """Roll-outs that are played side by side, stage by stage; each waits at the end of a stage for the others of its chunk."""

    def __init__(self, devices: int, change: BundleChange, settings: RolloutSettings, seed: int) -> None:
        self._settings, self._change = settings, change
        self._rng = np.random.default_rng(seed)
        counts = np.round(np.cumsum([0.0, *(kind.share for kind in KINDS)]) * devices).astype(int)
        kind_F = np.repeat(np.arange(len(KINDS)), np.diff(counts))
        self._kinds = [KINDS[kind].name for kind in kind_F]
        self._fleet = SimulatedFleet(AT_ONCE, kind_F, self._rng)
        self._taken_F = np.zeros(devices, dtype=bool)
        nothing = (AT_ONCE, devices)
        self._last = [self._fleet.window(np.zeros(nothing, dtype=bool), change) for _ in range(settings.windows_before)]
        self._before = _sum(self._last)
        self._hours = np.zeros(AT_ONCE, dtype=int)
        self._found: list[PlayedRollout | None] = [None] * AT_ONCE

    def play(self) -> list[PlayedRollout]:
        """All stages of all roll-outs."""
        for stage in range(len(self._settings.stages)):
            plan = draw_stage(self._kinds, self._taken_F, stage, self._settings, self._rng)
            self._taken_F[plan.added] = True
            self._stage(plan)
        stages = len(self._settings.stages)
        return [one or PlayedRollout(ALL, stages, 1.0, int(self._hours[at]), "") for at, one in enumerate(self._found)]

    def _stage(self, plan: StagePlan) -> None:
        settings, open_R = self._settings, np.flatnonzero([one is None for one in self._found])
        test = StageTest(settings, plan, self._rng, len(open_R))
        before = _of(self._before, open_R, plan.compared_N)
        since = TelemetrySums(*(np.zeros_like(one) for one in before))
        needed_RM = _needed(settings, plan, before)
        treated = np.broadcast_to(self._taken_F, (AT_ONCE, len(self._taken_F)))
        for number in range(1, settings.most_windows + 1):
            window = self._fleet.window(treated, self._change)
            self._last = [*self._last[1:], window]
            since = since.plus(_of(window, open_R, plan.compared_N))
            outcome = test.look(losses(before, since, (settings.windows_before, number), settings.device_requests))
            worse_R = outcome.worse_RM.any(1)
            for at, measure in zip(open_R[worse_R].tolist(), outcome.worse_RM[worse_R].argmax(1).tolist(), strict=True):
                self._end(at, HALTED, plan.stage, number, MEASURES[measure])
            requests_R = (since.requests * plan.treated_N).sum(1)
            enough_R = (requests_R >= settings.least_requests) & (number >= settings.least_windows)
            safe_R = (outcome.safe_RM | ~needed_RM).all(1) & enough_R & ~worse_R
            self._pass(open_R[safe_R], number)
            kept_R = ~(worse_R | safe_R)
            if not kept_R.all():
                test.keep(kept_R)
                open_R, needed_RM = open_R[kept_R], needed_RM[kept_R]
                before, since = _rows(before, kept_R), _rows(since, kept_R)
            if not len(open_R):
                return
        for at in open_R.tolist():
            self._end(at, ASKED, plan.stage, settings.most_windows, "")

    def _pass(self, passed: NDArray[np.int64], number: int) -> None:
        """Go on: the last day of such a roll-out is what the next stage compares devices with."""
        self._hours[passed] += number
        if len(passed):
            for kept, new in zip(self._before, _sum(self._last), strict=True):
                kept[passed] = new[passed]

    def _end(self, at: int, how: str, stage: int, number: int, measure: str) -> None:
        share = float(self._taken_F.mean())
        self._found[at] = PlayedRollout(how, stage, share, int(self._hours[at]) + number, measure)


def _sum(windows: list[TelemetrySums]) -> TelemetrySums:
    return TelemetrySums(*(np.sum(field, axis=0) for field in zip(*windows, strict=True)))


def _of(sums: TelemetrySums, rollouts: NDArray[np.int64], places: NDArray[np.int64]) -> TelemetrySums:
    return TelemetrySums(*(one[np.ix_(rollouts, places)] for one in sums))


def _rows(sums: TelemetrySums, kept_R: NDArray[np.bool_]) -> TelemetrySums:
    return TelemetrySums(*(one[kept_R] for one in sums))


def _needed(settings: RolloutSettings, plan: StagePlan, before: TelemetrySums) -> NDArray[np.bool_]:
    labelled_R = (before.labelled[:, plan.treated_N] >= settings.device_requests).sum(1)
    enough_R = labelled_R >= settings.least_devices
    return np.stack([enough_R if name == "agreement" else np.ones_like(enough_R) for name in settings.measures], 1)


def played(
    change: BundleChange, devices: int, repetitions: int, settings: RolloutSettings, seed: int = 0
) -> Iterator[PlayedRollout]:
    """So many roll-outs of one bundle, in chunks of `AT_ONCE`."""
    for chunk in range(-(-repetitions // AT_ONCE)):
        yield from _Chunk(devices, change, settings, seed + chunk).play()


def interval(count: int, of: int) -> tuple[float, float]:
    """Clopper–Pearson, 95 %."""
    low = 0.0 if count == 0 else float(stats.beta.ppf(0.025, count, of - count + 1))
    high = 1.0 if count == of else float(stats.beta.ppf(0.975, count + 1, of - count))
    return low, high


def row_of(name: str, found: list[PlayedRollout]) -> dict[str, Any]:
    """Of all repetitions with one bundle."""
    halted = [one for one in found if one.ended == HALTED]
    complete = [one for one in found if one.ended == ALL]
    measures = {name: sum(one.measure == name for one in halted) for name in MEASURES}
    return {
        "bundle": name,
        "repetitions": len(found),
        "halted": len(halted),
        "halted_interval": interval(len(halted), len(found)),
        "in_first_stage": sum(one.stage == 0 for one in halted),
        "largest_share": max((one.devices for one in halted), default=None),
        "median_hours_to_halt": float(np.median([one.hours for one in halted])) if halted else None,
        "all": len(complete),
        "median_hours_to_all": float(np.median([one.hours for one in complete])) if complete else None,
        "asked": sum(one.ended == ASKED for one in found),
        "measures": {name: count for name, count in measures.items() if count},
        "hours_to_halt": sorted(one.hours for one in halted),
        "hours_to_all": sorted(one.hours for one in complete),
    }


def picture(rows: list[dict[str, Any]], file: Path) -> None:
    """Shares of roll-outs that were halted, and that reached all devices, over hours, as SVG."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, key, title in zip(
        figure.subplots(1, 2, sharey=True), ("hours_to_halt", "hours_to_all"), ("halted", "on all devices"), strict=True
    ):
        for row in rows:
            hours, counts = np.unique(row[key], return_counts=True)
            shares = np.cumsum([0, *counts, 0]) / row["repetitions"]
            axes.step([0, *hours, LAST_H], shares, where="post", label=row["bundle"])
        axes.set(xlabel="hours since the first device had the bundle", title=f"roll-outs {title}", xlim=(0, LAST_H))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of repetitions")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "rollout"}):
        figure.savefig(file, metadata={"Date": None})


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    low, high = row["halted_interval"]
    share = row["repetitions"]

    def hours(value: float | None) -> str:
        return "–" if value is None else f"{value:g}"

    return [
        row["bundle"],
        str(share),
        f"{row['halted'] / share:.1%} ({low:.1%} to {high:.1%})",
        f"{row['in_first_stage'] / share:.1%}",
        "–" if row["largest_share"] is None else f"{row['largest_share']:.1%}",
        hours(row["median_hours_to_halt"]),
        f"{row['all'] / share:.1%}",
        hours(row["median_hours_to_all"]),
        f"{row['asked'] / share:.1%}",
        ", ".join(f"{name} {count}" for name, count in row["measures"].items()) or "–",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--picture", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    settings, rows = RolloutSettings(), []
    for name, change in CHANGES.items():
        rows.append(row_of(name, list(played(change, options.devices, options.repetitions, settings))))
        print(f"{name}: {rows[-1]['halted']} of {rows[-1]['repetitions']} halted", flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1) + "\n")
    heads = [
        "bundle",
        "roll-outs",
        "halted",
        "at 1 %",
        "had it, at most",
        "hours to halt",
        "all",
        "hours to all",
        "asked",
    ]
    show([*heads, "by"], [cells(row) for row in rows], markdown=options.markdown)
    if options.picture:
        picture(rows, options.picture)


if __name__ == "__main__":
    main()
