"""Cold caches are another metric than warm ones, and are really cold."""

from pathlib import Path

import numpy as np
import pytest

from profiling_agents.client import MeasureSettings
from profiling_agents.execution.bench import measure
from profiling_agents.messages import MIB, AgentError
from profiling_agents.sensing.machine import CacheFlush, last_level_cache_bytes
from tests.support.agents.agents_caches import CORE, ROUNDS


def write_caches(root: Path, core: int, sizes: dict[int, str]) -> None:
    for index, (level, size) in enumerate(sizes.items()):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cache/index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "size").write_text(f"{size}\n")


def test_the_last_cache_is_the_one_of_the_highest_level(tmp_path: Path) -> None:
    write_caches(tmp_path, 0, {1: "32K", 3: "16M", 2: "1024K"})
    write_caches(tmp_path, 1, {1: "64K", 2: "512K"})
    assert last_level_cache_bytes(0, tmp_path) == 16 * MIB
    assert last_level_cache_bytes(1, tmp_path) == MIB // 2
    assert last_level_cache_bytes(2, tmp_path) is None


def test_caches_of_unknown_size_cannot_be_emptied(tmp_path: Path) -> None:
    write_caches(tmp_path, 0, {2: "512K"})
    with pytest.raises(AgentError, match="cache 'cold': this system does not say how large its caches are"):
        CacheFlush([0, 1], tmp_path)


def test_each_sample_is_one_run_from_emptied_caches() -> None:
    calls: list[str] = []
    settings = MeasureSettings(cache="cold", warmup_ms=0.0, time_cap_ms=1.0, min_samples=6, min_blocks=1)
    timing = measure(lambda runs: calls.append(f"run {runs}"), settings, prepare=lambda: calls.append("flush"))
    assert timing.repeats == 1
    measured = calls[calls.index("flush") :]
    assert measured[:12] == ["flush", "run 1"] * 6


@pytest.mark.skipif(last_level_cache_bytes(CORE) is None, reason="this machine does not say how large its caches are")
def test_flushing_empties_the_caches_of_what_was_read_before() -> None:
    data = np.zeros(MIB // 8, np.float64)  # fits into the caches
    flush = CacheFlush([CORE])
    settings = MeasureSettings(warmup_ms=1.0, time_cap_ms=200.0, min_samples=15)

    def read(runs: int) -> None:
        for _ in range(runs):
            data.sum()

    slower = []
    for _ in range(ROUNDS):
        warm = measure(read, settings)
        cold = measure(read, settings, prepare=flush)
        slower.append(cold.p50_ms / warm.p50_ms)
    assert np.median(slower) > 1.2
