"""The policy stage: thresholds with a promise for a few SubNets of one device, and their results on test images.

`tasks.exits.passing` chooses the SubNets. All exits of a SubNet answer the holdout images (the validation split) in one pass;
the device times the SubNet up to each exit; `calibrate` finds thresholds from both, and the test split measures their results.
If a promise is impossible, the stage reports this in one line and the run continues. A second call in the same folder resumes.
"""

from pathlib import Path

import tailor_ir
from profiling_agents.client import AgentClient
from tasks.base.artifacts import NO_STORE, SubNetStore, write_bytes
from tasks.base.device import pick_device
from tasks.base.progress import Progress
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.data.description import check_same
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import EvaluationData, EvaluationWorkers, accuracy_lines
from tasks.exits.bench import HELD_OUT, TEST, PolicyBench, PolicyDevice
from tasks.exits.passing import passing_subnets
from tasks.exits.policies import (
    POLICIES_FILE,
    TABLE_FILE,
    SubnetPolicy,
)
from tasks.exits.settings import Settings
from tasks.measuring.lut import Lut
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.measuring.subnets import SubNetMeter
from tasks.prediction.layers import Layers

TIMED_FILE = "timed.jsonl"
EVALUATED_FILE = "evaluated.jsonl"


def run(
    settings: Settings,
    timing: RepeatedTimingSettings,
    evaluation: EvaluationSettings,
    data: DataSettings,
    supernet: Path,
    device: PolicyDevice,
    client: AgentClient,
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
    workers: EvaluationWorkers | None = None,
) -> StageResult:
    """Write thresholds and the table of exits; writes and returns `policies.json`.

    client: the caller holds its lease. UserError if the data differ from the data that the SuperNet was made for.
    """
    splits = load_splits(data)
    check_same(splits["train"], supernet)
    net = tailor_ir.load(supernet)
    images = EvaluationData(
        splits[HELD_OUT],
        splits["train"],
        device=pick_device("auto"),
        limit=settings.images,
        recalibration_images=evaluation.recalibration_images,
        features_mib=evaluation.features_mib,
        workers=workers,
    )
    net.elastic.to(images.device)
    bench = PolicyBench(
        settings=settings, net=net, device=device, held_out=images, test=images.of(splits[TEST], limited=False),
        layers=Layers(net, Lut.open(device.lut), device.latency.correction), out=out, progress=progress,
    )  # fmt: skip
    reason = _unfit(device)
    rows: list[SubnetPolicy] = []
    if reason is None:
        passing = passing_subnets(net, device.front, settings.subnets)
        if not passing:
            reason = f"policy: no winner of device.{device.target.name} passes an exit before its own; no thresholds"
        meter = SubNetMeter(net, client, timing.measure, timing.limits, timing.rounds, device.implementations)
        bench.time(passing, meter, meter.lines(store, supernet, out / TIMED_FILE, progress))
        rows = [bench.policy(config) for config in passing]
        evaluated = accuracy_lines(store, supernet, HELD_OUT, images, out / EVALUATED_FILE, progress)
        write_bytes(out / TABLE_FILE, bench.table(rows, evaluated).to_json().encode())
    if reason is not None:
        progress.say(reason)
    return bench.policies(rows, reason).write(out / POLICIES_FILE)


def _unfit(device: PolicyDevice) -> str | None:
    """The reason why no SubNet of a device gets thresholds; None if they may get them."""
    name = device.target.name
    if device.precision == "int8":
        return f"policy: device.{name} runs in int8, where exits answer otherwise than they were tested; no thresholds"
    if device.batch > 1:
        return (
            f"policy: device.{name}.batch={device.batch}: samples leave one by one; allowed: 1, in a run of its own; "
            "no thresholds"
        )
    return None
