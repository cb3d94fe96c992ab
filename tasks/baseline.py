"""The uniformly shrunk SubNets of a search, measured on the device and on the images, for comparison with winners."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.evaluate import EvaluationData, accuracies
from tasks.predict.measure import SubNetMeter
from tasks.progress import Progress

MEASURED_FILE = "baseline_measured.jsonl"
EVALUATED_FILE = "baseline_evaluated_{}.jsonl"


def measure_baseline(
    rows: Sequence[Mapping[str, Any]],
    meter: SubNetMeter,
    data: Mapping[str, EvaluationData],
    out: Path,
    progress: Progress,
) -> list[dict[str, Any]]:
    """Digest, measured_ms (None: failed, see reason) and accuracy per split of the `baseline` rows of front.json.

    The caller holds the device's lease. A second call in the same folder goes on.
    """
    configs = list({row["digest"]: row["config"] for row in rows}.values())
    measured = meter.measure(configs, out / MEASURED_FILE, progress, "measure baseline")
    found = {
        split: accuracies(
            meter.net, configs, images, out / EVALUATED_FILE.format(split), progress, f"evaluate baseline, {split}"
        )
        for split, images in data.items()
    }
    return [
        {
            "digest": measurement.key,
            "measured_ms": measurement.p50_ms,
            "reason": measurement.reason,
            "accuracy": {split: found[split][index].share for split in found},
        }
        for index, measurement in enumerate(measured)
    ]
