"""A trace of what a device saw: each value holds when it was sensed, what no sensor tells is not guessed, old samples go."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy import VariantTable
from adaptive_runtime.state.sensing import SensedState
from adaptive_runtime.state.traces import LoadRecorder, LoadTrace
from benchmarks.simulation import SimulatedRequests
from tests.support import examples

BEGIN_S = 1000.0


def sample(second: float, **fields: float | None) -> SensedState:
    """A sample of the device so long after the begin."""
    return SensedState.model_validate({"at_s": BEGIN_S + second, "wall_s": 0.0, **fields})


def test_a_trace_has_what_was_sensed_between_two_samples_and_the_requests_in_time() -> None:
    recorder = LoadRecorder("a test")
    recorder.arrived(BEGIN_S - 1)
    told = [(0.9, 900.0), (0.25, 800.0), (None, 400.0), (1.0, None), (0.5, 1000.0)]
    for second, (cpu, available) in enumerate(told):
        recorder.sensed(sample(second, cpu_use_others=cpu, memory_available_mib=available))
        recorder.sensed(sample(second, cpu_use_others=0.0))  # the same sample, told again
        recorder.arrived(BEGIN_S + second + 0.5)
    recorder.arrived(BEGIN_S + 0.25)  # told late, as where a client is slow
    trace = recorder.trace
    assert (trace.times_s, trace.duration_s, trace.seed) == ((0.0, 1.0, 2.0, 3.0), 4.0, None)
    assert trace.cpu == (0.25, 0.25, 1.0, 0.5), "a sample tells what was since the one before"
    assert trace.memory == pytest.approx((0.2, 0.6, 0.6, 0.0)), "of the 1000 MiB that were available at most"
    assert (trace.bandwidth, trace.cache, trace.slow_down) == ((0.0,) * 4, (), ())
    assert trace.arrivals_s == (0.25, 0.5, 1.5, 2.5, 3.5)
    assert LoadTrace.model_validate_json(trace.model_dump_json()) == trace


def test_the_hit_rate_and_the_slow_down_are_in_the_trace_where_they_were_known() -> None:
    recorder = LoadRecorder("a test")
    for second, (rate, slower) in enumerate([(None, None), (0.8, None), (0.4, 1.5), (0.6, 2.0)]):
        recorder.sensed(sample(second, cpu_use_others=0.5, hit_rate=rate), slower)
    trace = recorder.trace
    assert trace.cache == pytest.approx((0.0, 0.5, 0.25))
    assert trace.slow_down == ((1.0, 1.5, 2.0),)


def test_too_few_samples_and_samples_without_the_cpu_are_one_line() -> None:
    recorder = LoadRecorder("a test")
    recorder.sensed(None)
    recorder.sensed(sample(0.0, cpu_use_others=0.5))
    with pytest.raises(
        AdaptiveError, match="load trace: 1 samples of the device; allowed: 2 and more; record for longer"
    ):
        _ = recorder.trace
    blind = LoadRecorder("a test")
    for second in range(3):
        blind.sensed(sample(second, memory_available_mib=100.0))
    with pytest.raises(AdaptiveError, match="load trace: no sample has the use of the CPU"):
        _ = blind.trace


def test_a_trace_whose_slow_down_is_not_known_is_refused_by_the_simulator() -> None:
    recorder = LoadRecorder("a test")
    for second in range(3):
        recorder.sensed(sample(second, cpu_use_others=0.5))
    table = VariantTable(names=("a",), accuracy=(0.5,), latency_ms=(1.0,))
    with pytest.raises(AdaptiveError, match="trace 'a test': slow-down of 0 load classes; allowed: 1"):
        SimulatedRequests.drawn(table, recorder.trace, seed=0)


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(st.booleans(), min_size=30, max_size=200), st.integers(2, 20), st.integers(1, 20))
def test_the_latest_samples_and_requests_are_kept(samples: list[bool], most: int, most_arrivals: int) -> None:
    recorder, now_s = LoadRecorder("a test", most_samples=most, most_arrivals=most_arrivals), 0.0
    recorder.sensed(sample(-1.0, cpu_use_others=0.5))
    for is_sample in samples:
        now_s += 1.0
        if is_sample:
            recorder.sensed(sample(now_s, cpu_use_others=0.5))
        else:
            recorder.arrived(BEGIN_S + now_s)
    recorder.sensed(sample(now_s + 1, cpu_use_others=0.5))
    trace = recorder.trace
    assert len(trace.times_s) < most
    assert len(trace.arrivals_s) <= most_arrivals
    begin = now_s + 1 - trace.duration_s
    expected = [at - begin for at, is_sample in enumerate(samples, 1) if not is_sample and at >= begin][-most_arrivals:]
    assert trace.arrivals_s == pytest.approx(expected)
