"""Search on the device: SubNets for the user's own images, combined from the segments of a bundle.

[Search on the device](docs/device_search.md) says how it searches, and lists its needs and its files.
"""

from adaptive_runtime.local_search.background import BackgroundSearch
from adaptive_runtime.local_search.evaluation import (
    OwnEvaluation,
    OwnImages,
    PathScore,
    SegmentLatencies,
    SegmentSessions,
    known_latencies,
)
from adaptive_runtime.local_search.proposals import AdditiveModel, LocalSearchSettings, Proposer
from adaptive_runtime.local_search.running import search
from adaptive_runtime.local_search.space import (
    LatencyRange,
    PrefixTree,
    RunCounts,
    SegmentSpace,
    best_front,
    latency_ms,
    most_for_time,
    mutated,
)
