"""The hit rate of the processor's caches: by hardware counters, else by a timed probe, else as learned from these."""

from adaptive_runtime.state.sensing.hit_rate.chain import HitRate, HitRateStep
from adaptive_runtime.state.sensing.hit_rate.counters import CacheCounters, PerfCounter
from adaptive_runtime.state.sensing.hit_rate.learned import LearnedHitRate, LearnedHitRateFile
from adaptive_runtime.state.sensing.hit_rate.probe import CacheProbe, ProbeCalibration

__all__ = [
    "CacheCounters",
    "CacheProbe",
    "HitRate",
    "HitRateStep",
    "LearnedHitRate",
    "LearnedHitRateFile",
    "PerfCounter",
    "ProbeCalibration",
]
