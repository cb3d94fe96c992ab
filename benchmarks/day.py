"""A day of a device: each level alone, all levels together, and an oracle.

    python -m benchmarks.day --simulated (--bundle DIR | --work DIR) [--scenario FILE] [--minutes 780] [--slower 50] [--slack 2]
        [--peer-faster 8] [--watts 2] [--idle-watts 0.3] [--quantile 0.99] [--seed 0] [--markdown] [--json FILE]
        [OVERRIDE …]
    python -m benchmarks.day --bundle DIR --minutes 10 [--niceness -10] [--cpu-processes 1] [--bandwidth-processes 1] […]

The scenario is that of CrowdHMTware's case study (section IV-G), as far as it is published: battery from 90 to 21 %, free
memory from 85 to 28 %, light that changes, competing programs, and another device that comes and goes
(`benchmarks/scenarios/day.json`). The rows are those of the bundle, with its latencies and accuracies: SubNets, exits,
formats, and SubNets over the other device (`export.offload`), whose values cross in int8. The simulated device is --slower
times slower than that of the bundle, and has so much memory that the largest SubNet fits but for the time in which other
programs leave 28 %. Each request has --slack times the quiet latency of that. Energy is modelled: time by power, and sending.

With --work the bundle is that of DIR/exports/onnxruntime/bundle. Where it is not there, a slim SuperNet of ResNet-26 learns
ten characters of glyphs with depths, expansion ratios and exits, and `autotailor export` writes it for onnxruntime and ncnn
together, with plans for the other device, --peer-faster than the coordinator; OVERRIDEs go there.

Each system decides with the run time's own code from what it measures, by the rule 'mu by battery', and where other programs
leave less than the network has, at most 27 % of the memory: *elastic only* has whole SubNets, *exits only* the largest with
its exits, *engine only* the largest in all formats, *offloading only* the largest with the other device; pairs of them are
those of CrowdHMTware's ablation (Table V), whose elastic networks have exits; *all levels* has all rows, and weights that adapt
to the light. *Score*: mu · Norm(accuracy) − (1 − mu) · Norm(energy), the mean over requests. The
*oracle* knows each request before it comes (`benchmarks.simulation.scored`). What drift costs, and what adapting gives
back, are numbers of the scenario, as measured (docs/adaptation.md).

Without --simulated the same phases pass in --minutes with real processes (`benchmarks.day_played`): the bundle's SubNets run
on the coordinator, --slower times for each request; the other device is an agent behind a relay that has the link's
bandwidth and delay, is cut and mended; burners make the load of the coordinator, which has one core of the machine, and
what is elsewhere the others; sensors read battery and memory from files, as a device has them. What serves has --niceness,
as `autotailor-runtime serve` has it, and the burners 0. A device that is there in the first phase is connected before it
begins. All systems serve each request in turn, each with the loop of the run time. There is no oracle then, and accuracy
and energy are those of the rows.

Bars: 99 % in time; ahead of each level alone by 10 % of the oracle's score; within 5 % of the oracle.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.bundle.bundles import BUNDLE_FILE, BundleManifest
from adaptive_runtime.policy import ChoiceLimits
from adaptive_runtime.state.traces import PressureResponse, Scenario
from benchmarks.day_rows import NOMINAL_MBPS, NOMINAL_MS, DeviceModel, rows_of
from benchmarks.simulation import PlayedScenario, ScoredSystem
from benchmarks.simulation.scored import EVERYTHING, ORACLE, STAY
from benchmarks.tables import show

DAY = Path(__file__).parent / "scenarios" / "day.json"
TRAINED = (
    "data=glyphs",
    "data.images=8000",
    "data.classes=10",
    "data.resolution=32",
    "data.validation_share=0.25",
    "data.test_share=0.25",
    "data.workers=1",
    "model=timm",
    "model.name=resnet26",
    "model.options={channels:[32,64,128,256]}",
    "base.epochs=5",
    "base.learning_rate=0.002",
    "finetune.epochs=5",
    "finetune.learning_rate=0.002",
    "base.processes=1",
    "finetune.processes=1",
    "space.exits=auto",
    "space.depth=auto",
    "space.expand_ratio=auto",
    "search=exact",
    "exits.subnets=4",
    "device=[onnxruntime,ncnn]",
    "export.formats=[onnx,ncnn]",
    "export.shared_bundle={onnxruntime:[ncnn]}",
    "export.bundle=true",
)
RESPONSE = PressureResponse(cpu=2.0, bandwidth=1.0)
MOST_SLOWER = 4.0
"""Under load, for which plans are made."""
MEMORY = 2.6
"""Of the device, over that of the largest SubNet: it fits but for the time in which other programs leave 28 %."""
LITTLE = 0.27
"""Share of the device's memory that the network takes at most while other programs leave little."""
IN_TIME, AHEAD, BEHIND = 0.99, 0.10, 0.05
ALONE = ("elastic only", "exits only", "engine only", "offloading only")


def placed_words(options: argparse.Namespace) -> list[str]:
    """Overrides by which the export plans its SubNets over the scenario's other device."""
    (peer,) = Scenario.read(options.scenario).peers
    return [
        f"+device.{peer}.backend=onnxruntime",
        "export.offload=true",
        f"partition.devices=[onnxruntime,{peer}]",
        f"partition.bandwidth_mbps=[{NOMINAL_MBPS:g}]",
        f"partition.latency_ms={NOMINAL_MS / 2:g}",
        f"partition.slow_down={{{peer}:{options.slower / options.peer_faster:g}}}",
        f"partition.plans_slow_down=[{options.slower:g},{MOST_SLOWER * options.slower:g}]",
        "partition.plans_bandwidth_mbps=[1,100]",
        "partition.coding=int8",
    ]


def made(options: argparse.Namespace) -> Path:
    """The bundle of a folder, trained and exported where it is not there."""
    work: Path = options.work
    found = work / "exports" / "onnxruntime" / "bundle"
    if not (found / BUNDLE_FILE).exists():
        words = *TRAINED, *placed_words(options), *options.overrides
        command = [sys.executable, "-m", "flows.cli", "export", f"output_dir={work.resolve()}", *words]
        done = subprocess.run(command, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
    return found


def played(options: argparse.Namespace) -> PlayedScenario:
    """The scenario on the device, with the rows of the bundle."""
    scenario = Scenario.read(options.scenario)
    if options.minutes:
        scenario = scenario.lasting(60 * options.minutes)
    manifest = BundleManifest.from_json((options.bundle / BUNDLE_FILE).read_bytes(), str(options.bundle))
    rows = rows_of(options.bundle, manifest, DeviceModel(options.slower, options.watts, options.idle_watts))
    memory_mib = MEMORY * float(rows.table.memory_mib_V[rows.full])
    scenario = scenario.model_copy(update={"memory_total_mib": memory_mib})
    limits = ChoiceLimits(budget_ms=options.slack * rows.table.latency_ms[rows.full], quantile=options.quantile)
    policy = f"memory < 1% -> mu by battery, at most {LITTLE * memory_mib:.3g} MiB; mu by battery"
    return PlayedScenario.drawn(scenario, rows, limits, RESPONSE, seed=options.seed, policy=policy)


def judged(found: Sequence[ScoredSystem]) -> dict[str, bool]:
    """The bars; without an oracle, shares are of the system's own score."""
    by_name = {one.name: one for one in found}
    ours = by_name[EVERYTHING]
    best = by_name.get(ORACLE, ours).score
    ahead = {name: ours.score - by_name[name].score >= AHEAD * abs(best) for name in ALONE}
    return {
        f"{IN_TIME:.0%} in time": ours.attainment >= IN_TIME,
        **{f"ahead of {name} by {AHEAD:.0%}": holds for name, holds in ahead.items()},
        f"within {BEHIND:.0%} of the oracle": ORACLE in by_name and best - ours.score <= BEHIND * abs(best),
    }


def really_played(day: PlayedScenario, options: argparse.Namespace) -> list[ScoredSystem]:
    """All systems but the oracle, with real processes."""
    from benchmarks.day_played import play

    systems = {**day.alone, STAY: frozenset(range(len(day.rows.table)))}
    processes = options.cpu_processes, options.bandwidth_processes
    with tempfile.TemporaryDirectory() as work:
        played = play(
            options.bundle,
            day,
            systems,
            Path(work),
            slower=round(options.slower),
            processes=processes,
            niceness=options.niceness,
        )
    median_ms, most_ms = np.percentile(played[STAY].decided_ms, [50, 99])
    print(f"a decision over all levels: {median_ms * 1e3:.0f} µs, 99 % within {most_ms * 1e3:.0f} µs")
    outcomes = {name: one.outcome(day.scenario.duration_s) for name, one in played.items()}
    found = [day.scored(name, outcome, day.left_R) for name, outcome in outcomes.items()]
    return [*found, day.scored(EVERYTHING, outcomes[STAY], day.adapted_R)]


def cells(found: Sequence[ScoredSystem]) -> list[list[str]]:
    """The table's rows."""
    best = max(one.score for one in found)
    return [
        [
            one.name,
            f"{one.attainment:.2%}",
            f"{one.without_memory:.1%}",
            f"{one.accuracy:.2%}",
            f"{one.energy_mj:.1f}",
            f"{one.score:.3f}",
            f"{(one.score - best) / abs(best):+.1%}",
            f"{one.switches_per_minute:.2f}",
        ]
        for one in found
    ]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", action="store_true", help="by the simulator, without real processes")
    parser.add_argument("--minutes", type=float, help="of the whole scenario; its own time without")
    parser.add_argument("--niceness", type=int, default=0, help="of what serves: below 0 it goes before the burners")
    parser.add_argument("--cpu-processes", type=int, default=1)
    parser.add_argument("--bandwidth-processes", type=int, default=1)
    bundle = parser.add_mutually_exclusive_group(required=True)
    bundle.add_argument("--bundle", type=Path, metavar="DIR")
    bundle.add_argument("--work", type=Path, metavar="DIR", help="of a run whose bundle is made where it is not there")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.add_argument("--scenario", type=Path, default=DAY, metavar="FILE")
    parser.add_argument("--slower", type=float, default=50.0)
    parser.add_argument("--slack", type=float, default=2.0)
    parser.add_argument("--peer-faster", type=float, default=8.0)
    parser.add_argument("--watts", type=float, default=2.0)
    parser.add_argument("--idle-watts", type=float, default=0.3)
    parser.add_argument("--quantile", type=float, default=0.99)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    options.bundle = options.bundle or made(options)
    day = played(options)
    found = day.systems() if options.simulated else really_played(day, options)
    hours, requests = day.scenario.duration_s / 3600, len(day.requests)
    print(f"{hours:.1f} hours, {requests} requests of {day.limits.budget_ms:.1f} ms, {len(day.rows.table)} rows")
    heads = [
        "system",
        "in time",
        "short of memory",
        "accuracy",
        "energy, mJ",
        "score",
        "to the best",
        "switches a minute",
    ]
    show(heads, cells(found), markdown=options.markdown)
    bars = judged(found)
    print("; ".join(f"{name}: {'holds' if holds else 'NO'}" for name, holds in bars.items()))
    if options.json:
        told: dict[str, Any] = {"systems": [one._asdict() for one in found], "bars": bars}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
