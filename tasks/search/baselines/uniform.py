"""The uniformly shrunk SubNets of a search, measured on the device and on the images, for comparison with winners."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.base.artifacts import NO_STORE, SubNetStore
from tasks.base.progress import Progress
from tasks.base.schemas.exports import MeasuredBaseline
from tasks.base.schemas.front import UniformSubNet
from tasks.evaluation.subnets import EvaluationData, accuracies, accuracy_lines
from tasks.measuring.subnets import SubNetMeter

MEASURED_FILE = "baseline_measured.jsonl"
EVALUATED_FILE = "baseline_evaluated_{}.jsonl"


def measure_baseline(
    rows: Sequence[UniformSubNet],
    meter: SubNetMeter,
    supernet: Path,
    data: Mapping[str, EvaluationData],
    out: Path,
    progress: Progress,
    store: SubNetStore = NO_STORE,
) -> tuple[MeasuredBaseline, ...]:
    """Latency (None: failed, see reason) and accuracy per split of the `baseline` rows of front.json, each SubNet once.

    supernet: the folder of the meter's SuperNet. Measurements that the store has are copied from there. The caller holds the
    device's lease. A second call in the same folder resumes.
    """
    configs = list({row.digest: row.config for row in rows}.values())
    if not configs:
        return ()
    timed = meter.lines(store, supernet, out / MEASURED_FILE, progress)
    measured = meter.measure([meter.net.max_config, *configs], timed, progress, "measure baseline")[1:]
    found = {}
    for split, images in data.items():
        lines = accuracy_lines(store, supernet, split, images, out / EVALUATED_FILE.format(split), progress)
        found[split] = accuracies(meter.net, configs, images, lines, progress, f"evaluate baseline, {split}")
    return tuple(
        MeasuredBaseline(
            digest=measurement.key,
            measured_ms=measurement.p50_ms,
            reason=measurement.reason,
            accuracy={split: found[split][index].share for split in found},
        )
        for index, measurement in enumerate(measured)
    )
