"""Rules of measuring, frames, leases, cores and messages, each on its own."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import ValidationError

from profiling_agents import frames
from profiling_agents.execution.bench import measure, relative_half_width
from profiling_agents.messages import TENSOR_TYPES, AgentError, Measurement, MeasureSettings, TensorHeader
from profiling_agents.network.guard import RequestRefused
from profiling_agents.sensing.machine import available_cores, claim
from profiling_agents.serving.job_queue import Leases


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        continue


def test_short_runs_are_repeated_until_a_sample_can_be_timed() -> None:
    def repeat(runs: int) -> None:
        for _ in range(runs):
            spin(20e-6)

    timing = measure(repeat, MeasureSettings())
    assert timing.p50_ms > 0.0195
    assert timing.n >= 5


def test_long_runs_are_taken_one_by_one_and_stop_at_the_cap() -> None:
    calls: list[int] = []

    def repeat(runs: int) -> None:
        calls.append(runs)
        spin(0.02)

    timing = measure(repeat, MeasureSettings(time_cap_ms=10.0, min_samples=4, spread_limit=1e9))
    assert timing.n == 4
    assert set(calls) == {1}
    assert timing.p50_ms >= 20.0


def test_an_unsteady_model_is_measured_twice_and_flagged() -> None:
    calls = 0

    def repeat(runs: int) -> None:
        nonlocal calls
        calls += 1
        spin(0.002 if calls % 2 else 0.001)

    settings = MeasureSettings(warmup_ms=0, sample_us=10, time_cap_ms=10, samples_per_block=4, min_samples=8)
    timing = measure(repeat, settings)
    assert timing.noisy
    assert timing.spread > settings.spread_limit
    assert calls > 2 * 8


def test_what_another_process_does_on_the_core_is_not_the_models_time() -> None:
    x = np.random.default_rng(0).standard_normal(200_000)

    own_ms = []

    def repeat(runs: int) -> None:
        start_s = time.thread_time()
        for _ in range(runs):
            np.sort(x)
        own_ms.append(1e3 * (time.thread_time() - start_s) / runs)

    own = os.sched_getaffinity(0)
    core = max(own)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            os.sched_setaffinity(other.pid, {core})
            os.sched_setaffinity(0, {core})
            timing = measure(repeat, MeasureSettings(time_cap_ms=600.0, sample_us=10.0), one_thread=True)
        finally:
            os.sched_setaffinity(0, own)
            other.kill()
    assert timing.p50_ms < 1.5 * np.median(own_ms)  # by the clock it is at least twice as long


def test_the_confidence_interval_of_the_median_uses_order_statistics() -> None:
    assert relative_half_width(np.full(9, 3.0)) == 0.0
    wide = np.arange(1.0, 101.0)
    assert relative_half_width(wide) == pytest.approx((61 - 40) / 2 / 50.5, rel=0.06)


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "ok"},
        {"state": "ok", "p50_ms": 0.0, "p90_ms": 1.0, "spread": 0.0},
        {"state": "ok", "p50_ms": float("nan"), "p90_ms": 1.0, "spread": 0.0},
        {"state": "failed"},
        {"state": "failed", "reason": "why", "p50_ms": 1.0},
        {"state": "failed", "reason": "why", "more": 1},
    ],
)
def test_a_measurement_is_a_time_or_a_reason_and_never_both(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Measurement.model_validate({"key": "k"} | fields)


ARRAYS = st.sampled_from(TENSOR_TYPES).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@given(st.lists(ARRAYS, max_size=4), st.binary(max_size=50))
def test_tensors_survive_a_frame_bit_for_bit(arrays: list[np.ndarray], header: bytes) -> None:
    frame = frames.pack(header, frames.to_bytes(arrays))
    got_header, payload = frames.unpack(frame, len(frame))
    got = frames.from_bytes(frames.describe(arrays), payload)
    assert got_header == header
    assert [(a.shape, a.dtype.name, a.tobytes()) for a in got] == [(a.shape, a.dtype.name, a.tobytes()) for a in arrays]


def test_objects_do_not_travel() -> None:
    with pytest.raises(AgentError, match="tensor of type object; allowed: float32"):
        frames.describe([np.array([{}], dtype=object)])
    with pytest.raises(ValidationError):
        TensorHeader.model_validate({"dtype": "object", "shape": [1]})


@given(st.binary(max_size=40))
def test_broken_frames_are_refused_in_one_line(frame: bytes) -> None:
    with pytest.raises(AgentError, match=r"^frame: "):
        frames.unpack(frame[:1] + b"\x01" + frame[1:], 64)


def test_payloads_of_another_size_than_their_headers_are_refused() -> None:
    header = TensorHeader(dtype="float32", shape=(2, 3))
    with pytest.raises(AgentError, match="headers name 24 bytes, payload has 20"):
        frames.from_bytes([header], bytes(20))


def test_a_lease_excludes_expires_and_is_renewed() -> None:
    now = 0.0
    leases = Leases(clock=lambda: now)
    first, second = "1" * 32, "2" * 32
    assert leases.acquire(first, 10.0)
    with pytest.raises(RequestRefused, match=r"leased by another client; free in at most 10\.0 s"):
        leases.acquire(second, 10.0)
    now = 9.0
    assert leases.renew(first) == 10.0
    now = 18.0
    assert leases.remaining_s == 1.0
    assert not leases.acquire(first, 10.0)
    now = 28.0
    with pytest.raises(RequestRefused, match="no valid lease"):
        leases.renew(first)
    assert leases.acquire(second, 10.0)
    with pytest.raises(RequestRefused, match="no valid lease"):
        leases.release(first)
    leases.release(second)
    assert leases.remaining_s == 0.0


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("own_temporary_folder")
def test_two_agents_never_claim_the_same_core_while_there_are_free_ones() -> None:
    claims = [claim(1) for _ in available_cores()]
    assert sorted(one.cores[0] for one in claims) == list(available_cores())
    assert not any(one.shared for one in claims)
    sharing = [claim(1) for _ in available_cores()]
    assert sorted(one.cores[0] for one in sharing) == list(available_cores())
    assert all(one.shared for one in sharing)
    claims[0].release()
    assert claim(1).cores == claims[0].cores


def test_a_claims_folder_that_others_could_write_to_is_refused(own_temporary_folder: Path) -> None:
    claim(1).release()
    (folder,) = own_temporary_folder.iterdir()
    folder.chmod(0o777)
    with pytest.raises(AgentError, match="not a private folder"):
        claim(1)
