"""Traces: drawn alike from one seed, files that read back, damage in one line; and processes that make load and end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from inspect import getclosurevars
from pathlib import Path
from typing import get_args

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.sensing import MemorySensor
from adaptive_runtime.state.traces import (
    PATTERNS,
    LoadTrace,
    Pattern,
    PressureResponse,
    RequestArrivals,
    Stress,
    trace_of,
)
from adaptive_runtime.state.traces.burner import (
    HELD_MIB,
    LEAST_LEFT,
    LINE,
    MOST_CACHE_MIB,
    PIECE,
    UNKNOWN_CACHE_MIB,
    HeldMemory,
    walking,
)
from profiling_agents.messages import MIB
from profiling_agents.sensing.machine import available_cores, last_level_cache_bytes
from tests.support import examples
from tests.support.runtime.device_files import write
from tests.support.runtime.service_process import soon

patterns = st.sampled_from(get_args(Pattern))
START_S = 60.0
"""Patience with processes on a machine that others use."""


@settings(deadline=None, max_examples=examples(30))
@given(patterns, st.integers(0, 2**32), st.floats(5.0, 60.0), st.booleans())
def test_a_trace_is_drawn_alike_from_one_seed(pattern: Pattern, seed: int, duration_s: float, regular: bool) -> None:
    responses = (PressureResponse(2.0, 0.5), PressureResponse(0.5, 3.0))
    arrivals = RequestArrivals(regular=regular)
    drawn = [
        trace_of(pattern, seed=seed, duration_s=duration_s, responses=responses, arrivals=arrivals) for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    trace = drawn[0]
    expected = [[1 + a * c + b * w for c, w in zip(trace.cpu, trace.bandwidth, strict=True)] for a, b in responses]
    np.testing.assert_allclose(trace.slow_down_CT, expected, rtol=1e-12)
    assert LoadTrace.model_validate_json(trace.model_dump_json()) == trace


def test_patterns_have_the_load_that_their_names_say() -> None:
    traces = {name: np.array(trace_of(name, seed=1, duration_s=600.0).cpu) for name in PATTERNS}
    assert len(np.unique(traces["steps"])) == 5
    assert (np.diff(traces["steps"]) != 0).sum() < 60
    assert np.abs(np.diff(traces["random"])).max() < 0.5
    assert 0.2 < (traces["user"] > 0.2).mean() < 0.9
    assert 0.05 < (traces["bursts"] > 0.5).mean() < 0.4


def test_the_value_that_holds_at_a_time_is_the_last_one_before_it() -> None:
    trace = trace_of("steps", seed=0, duration_s=1.0, every_s=0.25)
    np.testing.assert_array_equal(trace.at(np.array([0.0, 0.1, 0.25, 0.6, 0.99])), [0, 0, 1, 2, 3])


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('"times_s":[0.0,', '"times_s":[0.5,', "times_s do not rise from 0"),
        ('"cpu":[', '"cpu":[0.5,', "values for 4 times"),
        ('"memory":[]', '"memory":[0.5]', "1 values for 4 times"),
        ('"duration_s":1.0', '"duration_s":0.5', "is not before the end, 0.5 s"),
        ('"arrivals_s":[0.0,', '"arrivals_s":[0.9,', "arrivals_s do not rise"),
        ('"origin"', '"source"', "origin: Field required"),
    ],
)
def test_a_damaged_trace_is_one_line(before: str, after: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    trace_of("steps", seed=0, duration_s=1.0, every_s=0.25).write(file)
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(AdaptiveError, match=rf"trace\.json: .*{line}.*; record or draw the trace again$"):
        LoadTrace.read(file)
    with pytest.raises(AdaptiveError, match="cannot be read"):
        LoadTrace.read(tmp_path / "none.json")


def test_a_trace_without_cache_and_memory_is_read_and_its_pressure_is_that_of_the_others() -> None:
    old = '{"origin":"old","duration_s":2,"times_s":[0,1],"cpu":[0.1,0.2],"bandwidth":[0.3,0.4],"slow_down":[[1,2]]}'
    trace = LoadTrace.model_validate_json(old)
    assert (trace.pressure(0), trace.pressure(1)) == ({"cpu": 0.1, "bandwidth": 0.3}, {"cpu": 0.2, "bandwidth": 0.4})
    more = trace.model_copy(update={"cache": (0.5, 0.6), "memory": (0.7, 0.8)})
    assert more.pressure(1) == {"cpu": 0.2, "bandwidth": 0.4, "cache": 0.6, "memory": 0.8}
    whole = trace_of("steps", seed=3, duration_s=30.0, also=("cache", "memory"))
    plain = trace_of("steps", seed=3, duration_s=30.0)
    assert whole.model_copy(update={"cache": (), "memory": ()}) == plain, "what is drawn first stays as it was"
    assert len({whole.cpu, whole.bandwidth, whole.cache, whole.memory}) == 4


def gone(process_ids: tuple[int, ...]) -> bool:
    """Whether processes end soon."""
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        if not any(psutil.pid_exists(each) and psutil.Process(each).status() != "zombie" for each in process_ids):
            return True
        time.sleep(0.05)
    return False


def processor_s(processes: Sequence[psutil.Process]) -> np.ndarray:
    """The processor time [s] of each."""
    return np.array([sum(process.cpu_times()[:2]) for process in processes])


def test_stress_uses_the_processor_for_the_share_that_is_set_and_ends() -> None:
    used_s = {}
    lasted_s = 0.0
    with Stress(cpu_processes=1, bandwidth_processes=1) as stress:
        processes = [psutil.Process(each) for each in stress.process_ids]
        for share in (0.0, 0.5):
            stress.set(cpu=share, bandwidth=share)
            time.sleep(0.2)
            start_s, before_s = time.monotonic(), processor_s(processes)
            time.sleep(1.5)
            used_s[share] = processor_s(processes) - before_s
            while share and used_s[share].min() < 0.1 and time.monotonic() < start_s + START_S:
                time.sleep(0.1)  # until the others on the machine let it compute
                used_s[share] = processor_s(processes) - before_s
            lasted_s = time.monotonic() - start_s
        ids = stress.process_ids
    assert used_s[0.0].max() <= 0.1
    assert used_s[0.5].min() >= 0.1
    assert used_s[0.5].max() <= 0.8 * lasted_s
    assert gone(ids)
    assert stress.process_ids == ()


def test_memory_that_is_held_is_given_back_when_less_is_told_and_when_the_stress_ends() -> None:
    memory = MemorySensor().read()
    available_mib, total_mib = memory["memory_available_mib"], memory["memory_total_mib"]
    if available_mib < LEAST_LEFT * total_mib + 4 * HELD_MIB:
        pytest.skip("others have taken the memory that the stress could hold")
    share = 2.5 * HELD_MIB / available_mib
    with Stress(memory_processes=1) as stress:
        (process,) = [psutil.Process(each) for each in stress.process_ids]
        empty_mib = process.memory_info().rss / MIB
        stress.set(memory=share)
        assert soon(lambda: process.memory_info().rss / MIB - empty_mib > 0.9 * HELD_MIB)
        assert not soon(lambda: process.memory_info().rss / MIB - empty_mib > 4 * HELD_MIB, within_s=0.5)
        stress.set()
        assert soon(lambda: process.memory_info().rss / MIB - empty_mib < 0.5 * HELD_MIB)
    assert gone((process.pid,))


def test_memory_is_never_held_below_what_has_to_stay_available(tmp_path: Path) -> None:
    def available(mib: int) -> None:
        write(tmp_path, {"proc/meminfo": f"MemTotal: {1024 * 100} kB\nMemAvailable: {1024 * mib} kB"})

    available(50)
    held = HeldMemory(tmp_path, piece_mib=1)
    for _ in range(20):
        held(0.2)
    assert held.held_mib == 10, "a fifth of the 50 MiB that were available"
    available(20)  # as others have taken the rest; 20 of 100 have to stay
    for _ in range(20):
        held(1.0)
    assert held.held_mib == 10, "no piece more"
    available(19)
    for _ in range(4):
        held(1.0)
    assert held.held_mib == 6, "one piece fewer each time"
    available(50)
    for _ in range(100):
        held(0.0)
    assert held.held_mib == 0
    with pytest.raises(SystemExit, match="this system does not say how much memory is available"):
        HeldMemory(tmp_path / "none")


def test_a_walk_through_the_last_cache_holds_as_much_memory_and_touches_all_of_it() -> None:
    cache_bytes = last_level_cache_bytes(available_cores()[0])
    size_mib = UNKNOWN_CACHE_MIB if cache_bytes is None else max(1, min(cache_bytes // MIB, MOST_CACHE_MIB))
    with Stress(cpu_processes=1, cache_processes=1) as stress:
        computes, walks = (psutil.Process(each) for each in stress.process_ids)
        stress.set(cache=0.5)
        assert (walks.memory_info().rss - computes.memory_info().rss) / MIB > 0.9 * size_mib
        assert soon(lambda: processor_s([walks])[0] > processor_s([computes])[0] + 0.3)
    step, pieces = walking(), -(-size_mib * MIB // (8 * PIECE))
    working_set = getclosurevars(step).nonlocals["working_set"]
    assert working_set.nbytes == size_mib * MIB
    for _ in range(pieces):
        step()
    assert (working_set[::LINE] == 2).all(), "each line once"


def test_stress_follows_a_trace_for_as_long_as_it_lasts() -> None:
    trace = trace_of("steps", seed=0, duration_s=0.5, every_s=0.1)
    with Stress(cpu_processes=1, bandwidth_processes=0) as stress:
        start = time.monotonic()
        stress.follow(trace)
        assert 0.5 <= time.monotonic() - start < START_S
        start = time.monotonic()
        stress.follow(trace_of("steps", seed=0, duration_s=500.0), ended=lambda: True)
        assert time.monotonic() - start < START_S


def test_stress_ends_when_the_process_that_started_it_is_killed() -> None:
    code = (
        "from adaptive_runtime.state.traces import Stress\nimport time\n"
        "with Stress(cpu_processes=1, bandwidth_processes=1, cache_processes=1, memory_processes=1) as stress:\n"
        "    stress.set(cpu=0.2, bandwidth=0.2, cache=0.2, memory=0.02)\n"
        "    print(*stress.process_ids, flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    ids = tuple(map(int, parent.stdout.readline().split()))
    assert len(ids) == 4
    assert all(psutil.pid_exists(each) for each in ids)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert gone(ids)


def test_a_stress_process_that_has_died_is_told() -> None:
    with Stress(cpu_processes=1, bandwidth_processes=0) as stress:
        (process_id,) = stress.process_ids
        os.kill(process_id, signal.SIGKILL)
        assert gone((process_id,))
        with pytest.raises(AdaptiveError, match=rf"stress: process {process_id} for cpu has ended with -9"):
            stress.set(cpu=1.0)
    with pytest.raises(AdaptiveError, match="stress: -1 processes; allowed: 0 and more"):
        Stress(memory_processes=-1)
    with pytest.raises(AdaptiveError, match="stress: -1 processes; allowed: 0 and more"):
        Stress(cpu_processes=-1, bandwidth_processes=0)
