"""The decisions of a roll-out, as pure functions of telemetry: which devices are next, and whether to wait, go on or halt."""

from tasks.operations.fleet.rollout.decision import RolloutDecision, StageRecord, decide
from tasks.operations.fleet.rollout.draw import StagePlan, draw_stage
from tasks.operations.fleet.rollout.measures import TelemetrySums, losses
from tasks.operations.fleet.rollout.settings import MEASURES, LossLimits, MeasureName, RolloutSettings
from tasks.operations.fleet.rollout.stages import StageOutcome, StageTest

__all__ = [
    "MEASURES",
    "LossLimits",
    "MeasureName",
    "RolloutDecision",
    "RolloutSettings",
    "StageOutcome",
    "StagePlan",
    "StageRecord",
    "StageTest",
    "TelemetrySums",
    "decide",
    "draw_stage",
    "losses",
]
