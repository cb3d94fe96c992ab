"""Wait, go on, halt, or ask a person: the decision from a stage's telemetry so far.

Legend: N devices that the stage compares, W windows.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.operations.fleet.rollout.draw import StagePlan
from tasks.operations.fleet.rollout.measures import TelemetrySums, losses
from tasks.operations.fleet.rollout.settings import MeasureName, RolloutSettings
from tasks.operations.fleet.rollout.stages import StageOutcome, StageTest


class StageRecord(NamedTuple):
    """Telemetry of a stage. before: sums of the windows before it (1, N). windows: sums of each whole window since (1, N).
    bundle_N: requests that each device answered by the new bundle.
    """

    plan: StagePlan
    before: TelemetrySums
    windows: Sequence[TelemetrySums]
    bundle_N: NDArray[np.float64]


class RolloutDecision(NamedTuple):
    """The action, and its reason in one line for people. measure: the first one that is worse than tolerated."""

    action: Literal["wait", "go on", "halt", "ask"]
    reason: str
    measure: MeasureName | None = None


def decide(settings: RolloutSettings, record: StageRecord, rng: np.random.Generator) -> RolloutDecision:
    """The decision from the record alone: the same record and `rng` give the same decision, also after a restart."""
    test = StageTest(settings, record.plan, rng)
    since = TelemetrySums.nothing(1, len(record.plan.compared_N))
    outcome = None
    for number, window in enumerate(record.windows[: settings.most_windows], 1):
        since = since.plus(window)
        found = losses(record.before, since, (settings.windows_before, number), settings.device_requests)
        outcome = test.look(found)
        if (worse := worse_of(settings, outcome)) is not None:
            limit = settings.limits[worse].tolerated
            return RolloutDecision(
                "halt", f"{worse} is worse than tolerated ({limit:g}), seen in window {number}", worse
            )
    if outcome is None:
        return RolloutDecision("wait", "no whole window yet")
    return _without_alarm(settings, record, outcome)


def worse_of(settings: RolloutSettings, outcome: StageOutcome, rollout: int = 0) -> MeasureName | None:
    """The first measure that is worse than tolerated."""
    return next((name for name, worse in zip(settings.measures, outcome.worse_RM[rollout], strict=True) if worse), None)


def needed(settings: RolloutSettings, plan: StagePlan, before: TelemetrySums) -> NDArray[np.bool_]:
    """Measures that have to be shown safe (M,). Agreement is among them if enough devices of the stage know answers."""
    labelled = int((before.labelled[0, plan.treated_N] >= settings.device_requests).sum())
    return np.array([name != "agreement" or labelled >= settings.least_devices for name in settings.measures])


def _without_alarm(settings: RolloutSettings, record: StageRecord, outcome: StageOutcome) -> RolloutDecision:
    by_bundle_N = record.bundle_N[record.plan.treated_N]
    running_N, requests, number = by_bundle_N > 0, int(by_bundle_N.sum()), len(record.windows)
    unsafe = needed(settings, record.plan, record.before) & ~outcome.safe_RM[0]
    missing = ""
    if number < settings.least_windows:
        missing = f"{number} of {settings.least_windows} windows"
    elif running_N.mean() < settings.least_running:
        missing = f"{running_N.sum()} of {len(running_N)} devices run the bundle"
    elif requests < settings.least_requests:
        missing = f"{requests} of {settings.least_requests} requests"
    elif unsafe.any():
        names = [name for name, open_ in zip(settings.measures, unsafe, strict=True) if open_]
        missing = f"not yet shown to be harmless: {', '.join(names)}"
    if not missing:
        return RolloutDecision("go on", f"harmless in all measures after {number} windows")
    if number >= settings.most_windows:
        return RolloutDecision("ask", f"{missing}, after the most windows ({settings.most_windows})")
    return RolloutDecision("wait", missing)
