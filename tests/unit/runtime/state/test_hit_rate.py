"""The hit rate of caches: which source gave it, what the timed probe tells, and what is learned from it."""

import mmap
import platform
import sys
import time
from inspect import getclosurevars

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.sensing import SensedState, Sensing
from adaptive_runtime.state.sensing.hit_rate import (
    FEWEST,
    PAGE_FAULTS,
    SOFTWARE,
    SYSCALLS,
    CacheCounters,
    CacheProbe,
    HitRate,
    LearnedHitRate,
    PerfCounter,
    ProbeCalibration,
)
from adaptive_runtime.state.sensing.state import HitRateSource
from adaptive_runtime.state.traces.burner import PIECE, walking
from profiling_agents.sensing.machine import CacheFlush, available_cores, last_level_cache_bytes
from tests.support import examples

KNOWS_CACHES = sys.platform == "linux" and last_level_cache_bytes(available_cores()[0]) is not None
PAGE_BYTES = 4096
CALM_S = 180.0


def state(others: float = 0.5) -> SensedState:
    return SensedState(at_s=0, wall_s=0, cpu_use_others=others, usable_cpus=2, runnable=1)


def calibrated_probe() -> CacheProbe:
    """A probe, once the others on the machine let caches and memory be told apart."""
    until_s = time.monotonic() + CALM_S
    while True:
        try:
            return CacheProbe.calibrated(buffer_mib=1.0)
        except AdaptiveError:
            if time.monotonic() >= until_s:
                raise
        time.sleep(0.5)


class Gives:
    """A source that gives these rates in turn; an error is raised."""

    def __init__(self, name: HitRateSource, *rates: float | OSError | None) -> None:
        self.name: HitRateSource = name
        self._rates = list(rates)

    def read(self) -> float | None:
        rate = self._rates.pop(0)
        if isinstance(rate, OSError):
            raise rate
        return rate


def test_the_first_source_that_tells_is_named() -> None:
    counters, probe = Gives("counters", 0.9, None, OSError("gone")), Gives("probe", 0.7, 0.6, 0.5)
    chain = HitRate([counters, probe])
    found = [chain.estimate(state()) for _ in range(4)]
    assert found == [(0.9, "counters"), (0.7, "probe"), (0.6, "probe"), (0.5, "probe")]


def test_without_sources_and_lessons_the_rate_is_unknown() -> None:
    assert HitRate([]).estimate(state()) == (None, None)


def test_a_device_without_counters_and_sizes_of_caches_tells_why_the_rate_is_unknown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CacheCounters, "find", lambda cores: None)
    monkeypatch.setattr("adaptive_runtime.state.sensing.hit_rate.last_level_cache_bytes", lambda core: None)
    chain = HitRate.calibrated()
    (told,) = caplog.messages
    assert told == (
        "hit rate: no counters, and cache probe: this system does not say how large its caches are; it stays unknown"
    )
    assert chain.estimate(state()) == (None, None)


@pytest.mark.skipif(not KNOWS_CACHES, reason="this system does not say how large its caches are")
def test_samples_have_the_hit_rate_by_what_the_device_has(caplog: pytest.LogCaptureFixture) -> None:
    sensing = Sensing(hit_rate=True)
    try:
        found = [sensing.sample() for _ in range(3)]
    finally:
        sensing.stop()
    if caplog.messages:  # caches and memory cannot be told apart while others work
        assert "too close to tell apart" in caplog.messages[0]
        assert [one.hit_rate_by for one in found] == [None] * 3
    elif CacheCounters.find(available_cores()) is None:
        assert [one.hit_rate_by for one in found] == ["probe"] * 3
    else:
        assert "probe" not in {one.hit_rate_by for one in found}
    assert Sensing(()).sample().hit_rate is None, "it is not asked for"


@given(hit=st.floats(0.1, 10), factor=st.floats(1.5, 100), rate=st.floats(0, 1))
def test_the_probe_takes_the_share_between_its_two_times(hit: float, factor: float, rate: float) -> None:
    calibration = ProbeCalibration(buffer_mib=1, hit_ns=hit, miss_ns=factor * hit)
    now_ns = rate * calibration.hit_ns + (1 - rate) * calibration.miss_ns
    assert calibration.hit_rate(now_ns) == pytest.approx(rate, abs=1e-9)
    assert calibration.hit_rate(2 * calibration.miss_ns) == 0.0
    assert ProbeCalibration.from_json(calibration.to_json()) == calibration


def test_a_probe_that_cannot_tell_memory_from_caches_is_refused() -> None:
    with pytest.raises(AdaptiveError, match="too close to tell apart"):
        ProbeCalibration.from_json('{"buffer_mib": 1, "hit_ns": 2.0, "miss_ns": 2.1}')


@pytest.mark.skipif(not KNOWS_CACHES, reason="this system does not say how large its caches are")
def test_the_probe_sees_that_caches_were_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = calibrated_probe()
    flush = CacheFlush(available_cores()[:1])
    rates: dict[bool, list[float]] = {True: [], False: []}
    for emptied in [True, False] * 4:
        monkeypatch.setattr("time.sleep", lambda _, emptied=emptied: flush() if emptied else None)
        rate = probe.read()
        assert rate is not None
        rates[emptied].append(rate)
    assert np.median(rates[False]) > np.median(rates[True]) + 0.2
    assert probe.slowdown is not None


@pytest.mark.skipif(not KNOWS_CACHES, reason="this system does not say how large its caches are")
def test_the_walk_of_the_stress_takes_the_hits_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, step = calibrated_probe(), walking()
    pieces = -(-getclosurevars(step).nonlocals["working_set"].nbytes // (8 * PIECE))
    rates: dict[bool, list[float]] = {True: [], False: []}
    for walks in [True, False] * 4:
        monkeypatch.setattr("time.sleep", lambda _, count=pieces if walks else 0: [step() for _ in range(count)])
        rate = probe.read()
        assert rate is not None
        rates[walks].append(rate)
    assert np.median(rates[False]) > np.median(rates[True]) + 0.2


@given(weight=st.floats(-0.5, 0.5), base=st.floats(0.2, 0.8), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=examples(20), deadline=None)
def test_lessons_teach_the_rate_of_a_state(weight: float, base: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    learned = LearnedHitRate()
    chain = HitRate([], learned)
    for count in range(4 * FEWEST):
        if count < FEWEST:
            assert chain.estimate(state()) == (None, None)
        others = float(rng.random())
        learned.teach(state(others), float(np.clip(base + weight * others, 0, 1)))
    rate, source = chain.estimate(state(0.5))
    assert source == "learned"
    assert rate == pytest.approx(base + weight * 0.5, abs=0.1)
    assert LearnedHitRate.from_json(learned.to_json()).estimate(state(0.5)) == pytest.approx(rate)


def test_a_file_with_other_features_is_refused() -> None:
    with pytest.raises(AdaptiveError, match="features moon; allowed: 1, cpu_use_others"):
        LearnedHitRate.from_json('{"features": ["moon"], "coefficients": [1], "samples": 99, "error": 0}')


@pytest.mark.skipif(platform.machine() not in SYSCALLS, reason="no perf_event_open that is known here")
def test_a_counter_counts_events_of_this_thread() -> None:
    try:
        counter = PerfCounter(SOFTWARE, PAGE_FAULTS)
    except OSError as error:
        pytest.skip(f"this system does not allow counters: {error}")
    before = counter.read()
    with mmap.mmap(-1, 1 << 22) as pages:  # an array might get memory that was touched before
        for at in range(0, len(pages), PAGE_BYTES):
            pages[at] = 1
    assert counter.read() > before
    counter.close()


def test_counters_are_there_or_none() -> None:
    found = CacheCounters.find(available_cores())
    if found is None:
        with pytest.raises(OSError, match=r".+"):
            CacheCounters(available_cores(), "process")
        return
    data = np.ones(1 << 23)
    assert data[::8].sum() > 0
    rate = found.read()
    assert rate is None or 0.0 <= rate <= 1.0
    found.close()
