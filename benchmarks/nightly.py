"""Nights on a device that does not change: alarms without a reason, and slower operators that are found.

Each night starts an agent of its own and times operators and SubNets as `autotailor nightly` does, one night right after the
other. A change is made by multiplying the rounds of some operators on the second of two nights. With --work the nights'
records stay in that folder, and those that are there are not measured again.

    python -m benchmarks.nightly [--nights 12] [--model resnet18] [--backend onnxruntime] [--resolution 64] [--work DIR]
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import timm
import torch

import tailor_ir
from profiling_agents.client import local_agent
from tailor_ir import SuperNet
from tasks.base.progress import Silent
from tasks.measuring.profile import Settings as ProfileSettings
from tasks.measuring.subnets import SubNetMeter, validation_configs
from tasks.operations.nightly.comparison import compare
from tasks.operations.nightly.records import DeviceNight, Night, NightTimes, Settings
from tasks.operations.nightly.timing import NightSubNet, time_operators, time_subnets
from tasks.prediction.settings import Settings as PredictSettings

DEVICE = "device"
SETTINGS = Settings()
RANDOM_SUBNETS = 3
SLOWED = 5
FACTORS = (1.1, 1.2, 1.5)
TRIALS = 5


def measure(net: SuperNet, backend: str, out: Path) -> Night:
    """One night: all operators of the largest SubNet up to the setting, and a few SubNets."""
    began, predict = datetime.now(UTC).isoformat(timespec="microseconds"), PredictSettings()
    features = list(dict.fromkeys(net.operators(net.max_config)))
    features = sorted(features, key=lambda feature: (-feature.macs, feature.digest))[: SETTINGS.operators]
    configs = {net.space.digest(config): config for config in validation_configs(net, RANDOM_SUBNETS, seed=0)}
    subnets = {digest: NightSubNet(dict(config), digest[:8], None) for digest, config in configs.items()}
    with local_agent(backend=backend) as client, client.lease():
        operators = time_operators(features, SETTINGS, ProfileSettings(), client, Silent())
        meter = SubNetMeter(net, client, predict.measure, predict.limits, SETTINGS.rounds)
        timed = time_subnets(subnets, meter, out / "rounds.jsonl", Silent())
        fingerprint = client.capabilities().fingerprint
    times = NightTimes(measured_with="", largest=next(iter(configs)), operators=operators, subnets=timed)
    device = DeviceNight(fingerprint=fingerprint, facts={}, times=times, latency_errors={})
    return Night(
        began=began, network="benchmark", run="", supernet="", inputs={}, stages=(), devices={DEVICE: device},
        test_images=1, accuracy_errors={},
    )  # fmt: skip


def slowed(night: Night, factor: float, rng: np.random.Generator) -> tuple[Night, set[str]]:
    """The night with some operators slower, and their digests."""
    device = night.devices[DEVICE]
    known = [one.digest for one in device.times.operators if len(one.rounds_ms) == SETTINGS.rounds]
    chosen = set(rng.choice(known, size=min(SLOWED, len(known)), replace=False).tolist())
    operators = tuple(
        one.model_copy(update={"rounds_ms": tuple(factor * ms for ms in one.rounds_ms)})
        if one.digest in chosen
        else one
        for one in device.times.operators
    )
    times = device.times.model_copy(update={"operators": operators})
    return night.model_copy(update={"devices": {DEVICE: device.model_copy(update={"times": times})}}), chosen


def alarms(nights: Sequence[Night]) -> None:
    """Of each night against the one before, as `autotailor nightly` raises them, but for timing once more."""
    found, raw, timed = 0, 0, 0
    for place, (before, now) in enumerate(pairwise(nights)):
        comparison = compare(SETTINGS, nights[: place + 1], before, now)
        told = comparison.devices[DEVICE]
        found += bool(comparison.findings)
        raw, timed = raw + told.slower, timed + told.timed
        print(
            f"night {place + 2}: {len(comparison.findings)} findings in {comparison.tests} tests; {told.slower} of "
            f"{told.timed} slower by more than the {100 * told.tolerated:.1f} % that are tolerated"
        )
    print(f"unchanged: {found} of {len(nights) - 1} nights with a finding; {raw} of {timed} latencies beyond it")


def power(nights: Sequence[Night]) -> None:
    """Slower operators that are found, and others that are."""
    rng = np.random.default_rng(0)
    for factor in FACTORS:
        right, wrong, made = 0, 0, 0
        for place, (before, now) in enumerate(pairwise(nights)):
            for _ in range(TRIALS):
                changed, chosen = slowed(now, factor, rng)
                found = {one.name for one in compare(SETTINGS, nights[: place + 1], before, changed).findings}
                right, wrong, made = right + len(found & chosen), wrong + len(found - chosen), made + len(chosen)
        print(f"{SLOWED} operators {factor:g} × as slow: {right} of {made} found, {wrong} others")


def main() -> None:
    """Measure nights, and print what is found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nights", type=int, default=12)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--backend", default="onnxruntime")
    parser.add_argument("--resolution", type=int, default=64)
    parser.add_argument("--work", type=Path)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = timm.create_model(given.model, num_classes=10).eval()
    net = tailor_ir.compile(model, torch.zeros(1, 3, given.resolution, given.resolution))
    nights = []
    with ExitStack() as held:
        folder = given.work or Path(held.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(given.nights):
            file = folder / f"night{number}.json"
            if not file.exists():
                measure(net, given.backend, folder).write(file)
            nights.append(Night.read(file))
    alarms(nights)
    power(nights)


if __name__ == "__main__":
    main()
