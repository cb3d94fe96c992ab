"""Latencies of segments on this device: measured once, one segment after the other, and saved in a file."""

import time
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.bundle.bundles import BlocksManifest, OpenBundle
from adaptive_runtime.local_search.sessions import SegmentSessions
from adaptive_runtime.local_search.space import Floats
from adaptive_runtime.local_search.state import write_whole
from profiling_agents.messages import Digest

LATENCIES_FILE = "latencies.json"
VERSION = 1
WARM_UP_RUNS, FEWEST_RUNS, MOST_RUNS = 3, 10, 200
SEGMENT_S = 0.05


class SegmentLatencies(FileMessage):
    """Median per segment [ms], by its position.

    bundle: digest of its manifest. runtime: version of onnxruntime. took_s: time to measure all segments.
    """

    WHERE: ClassVar[str] = LATENCIES_FILE
    NEXT_STEP: ClassVar[str] = "remove it"
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "latencies"

    version: int = VERSION
    bundle: Digest
    runtime: str
    p50_ms: tuple[float, ...]
    took_s: float

    @property
    def ms_E(self) -> Floats:
        """The medians as an array (E,)."""
        return np.array(self.p50_ms)


def known_latencies(bundle: OpenBundle, blocks: BlocksManifest, folder: Path) -> SegmentLatencies:
    """Latencies from the folder of a search; measured now if missing, or if of another bundle or runtime."""
    import onnxruntime

    file = folder / LATENCIES_FILE
    if file.exists():
        try:
            found = SegmentLatencies.from_file(file)
            if (found.bundle, found.runtime) == (bundle.digest, onnxruntime.__version__):
                return found
        except AdaptiveError:
            file.unlink(missing_ok=True)
    sessions = SegmentSessions(bundle, blocks)
    start_s = time.perf_counter()
    times_ms = []
    for number in range(len(blocks.segments)):
        times_ms.append(measured_ms(sessions, blocks, (number,)))
        sessions.free()
    took_s = time.perf_counter() - start_s
    measured = SegmentLatencies(
        bundle=bundle.digest, runtime=onnxruntime.__version__, p50_ms=tuple(times_ms), took_s=took_s
    )
    write_whole(file, measured.model_dump_json(indent=1))
    return measured


def measured_ms(sessions: SegmentSessions, blocks: BlocksManifest, path: tuple[int, ...]) -> float:
    """The median duration of consecutive segments [ms], after warm-up runs."""
    return median(samples_ms(sessions, blocks, path))


def samples_ms(sessions: SegmentSessions, blocks: BlocksManifest, path: tuple[int, ...]) -> list[float]:
    """The durations of single runs [ms]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(tuple(size or 1 for size in blocks.segments[path[0]].input.shape), np.float32)
    found: list[float] = []
    until_s = time.perf_counter() + SEGMENT_S
    for turn in range(WARM_UP_RUNS + MOST_RUNS):
        start_ns, value = time.perf_counter_ns(), x
        for number in path:
            value = sessions.run(number, value)
        if turn >= WARM_UP_RUNS:
            found.append((time.perf_counter_ns() - start_ns) / 1e6)
        if len(found) >= FEWEST_RUNS and time.perf_counter() > until_s:
            break
    return found
