"""Traces: drawn alike from one seed, files that read back, damage in one line; and processes that make load and end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.traces import PATTERNS, LoadTrace, Pattern, PressureResponse, Stress, trace_of

patterns = st.sampled_from(get_args(Pattern))
START_S = 60.0
"""Patience with processes on a machine that others use."""


@settings(deadline=None, max_examples=30)
@given(patterns, st.integers(0, 2**32), st.floats(5.0, 60.0), st.booleans())
def test_a_trace_is_drawn_alike_from_one_seed(pattern: Pattern, seed: int, duration_s: float, regular: bool) -> None:
    responses = (PressureResponse(2.0, 0.5), PressureResponse(0.5, 3.0))
    drawn = [
        trace_of(pattern, seed=seed, duration_s=duration_s, responses=responses, regular=regular) for _ in range(2)
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
        "from adaptive_runtime.traces import Stress\nimport time\n"
        "with Stress(cpu_processes=1, bandwidth_processes=1) as stress:\n"
        "    stress.set(cpu=0.2, bandwidth=0.2)\n    print(*stress.process_ids, flush=True)\n    time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    ids = tuple(map(int, parent.stdout.readline().split()))
    assert len(ids) == 2
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
        Stress(cpu_processes=-1, bandwidth_processes=0)
