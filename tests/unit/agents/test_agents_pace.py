"""A core that others slow down: noticed by a loop, waited for, and what ran meanwhile left out.

The core has a clock of its own, so that this machine's state does not matter.
"""

import numpy as np
import pytest

import profiling_agents.execution.bench
import profiling_agents.sensing.machine
from profiling_agents.execution.bench import bounded_waiting, measure
from profiling_agents.execution.settings import ModelLimits
from profiling_agents.messages import MeasureSettings
from profiling_agents.sensing.machine import Pace, Runs

LOOP_US, SLOWER = 60.0, 2.0


class Core:
    """A core and its clock, which work and sleep move; `calm_at_s`: when it is calm again."""

    def __init__(self) -> None:
        self.slow = False
        self.calm_at_s = float("inf")
        self._now_ns = 0

    def work(self, duration_us: float) -> None:
        is_slow = self.slow and self.perf_counter() < self.calm_at_s
        self._now_ns += int(1e3 * duration_us * (SLOWER if is_slow else 1.0))

    def pace(self) -> Pace:
        return Pace(lambda: self.work(LOOP_US))

    def perf_counter_ns(self) -> int:
        return self._now_ns

    def perf_counter(self) -> float:
        return self._now_ns * 1e-9

    thread_time = perf_counter

    def sleep(self, duration_s: float) -> None:
        self._now_ns += int(duration_s * 1e9)


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Core:
    one = Core()
    monkeypatch.setattr(profiling_agents.sensing.machine, "time", one)
    monkeypatch.setattr(profiling_agents.execution.bench, "time", one)
    return one


def test_short_runs_are_repeated_until_a_sample_can_be_timed_and_cost_little(core: Core) -> None:
    runs = 0

    def repeat(count: int) -> None:
        nonlocal runs
        runs += count
        core.work(50.0 * count)

    timing = measure(repeat, MeasureSettings())
    assert timing.p50_ms == pytest.approx(0.05)
    assert 2 <= timing.repeats <= 6
    assert timing.n >= 5
    assert runs * 0.05 < 90  # ms


def test_a_slow_core_is_noticed_and_a_calm_one_again(core: Core) -> None:
    pace = core.pace()
    found = []
    for slow in (False, True, False):
        core.slow = slow
        found.append(np.mean([pace.calm() for _ in range(50)]))
    assert found == [1.0, 0.0, 1.0]


def test_a_frequency_that_stays_becomes_usual(core: Core) -> None:
    pace = core.pace()
    core.slow = True
    calm = [pace.calm() for _ in range(6000)]
    assert not any(calm[:1000])
    assert all(calm[-500:])


def test_waiting_ends_when_the_core_is_calm(core: Core) -> None:
    pace = core.pace()
    assert not pace.wait(core.perf_counter() + 10)
    start = core.perf_counter()
    core.slow, core.calm_at_s = True, start + 0.2
    assert pace.wait(start + 20)
    assert 0.2 <= core.perf_counter() - start < 0.21


def test_waiting_ends_at_its_limit(core: Core) -> None:
    pace = core.pace()
    core.slow = True
    start = core.perf_counter()
    assert pace.wait(start + 0.1)
    assert 0.1 <= core.perf_counter() - start < 0.11


def test_samples_on_a_slow_core_are_left_out(core: Core) -> None:
    """The core changes within samples, too; those of the slow half would double the median's spread."""
    pace = core.pace()
    runs = 0

    def repeat(count: int) -> None:
        nonlocal runs
        for _ in range(count):
            runs += 1
            core.slow = runs % 20 >= 10
            core.work(300.0)
            core.slow = core.slow and runs % 20 != 19

    settings = MeasureSettings(warmup_ms=0, time_cap_ms=60, confidence=1e-6, block_pause_ms=0, patience=0)
    timing = measure(repeat, settings, pace=pace)
    assert timing.p50_ms == pytest.approx(0.3, rel=0.1)
    assert timing.p90_ms == pytest.approx(0.3, rel=0.2)


def test_a_core_that_is_never_calm_gives_noisy_times(core: Core) -> None:
    pace = core.pace()
    core.slow = True

    def repeat(count: int) -> None:
        for _ in range(count):
            core.work(300.0)

    settings = MeasureSettings(warmup_ms=0, time_cap_ms=5, patience=2)
    timing = measure(repeat, settings, pace=pace)
    assert timing.noisy
    assert timing.p50_ms == pytest.approx(0.6, rel=0.2)


def test_runs_keep_the_rows_of_calm_ones(core: Core) -> None:
    runs, rows = Runs(core.pace(), 100.0, 100.0), []
    for number, _ in enumerate(runs.each(5)):
        core.slow = number % 2 == 1
        core.work(300.0)
        rows.append(core.slow)
        core.calm_at_s = core.perf_counter() + 0.005
    assert runs.enough
    assert len(runs.kept(rows)) >= 5
    assert np.mean(rows) > 0.3
    assert not any(runs.kept(rows))


def test_runs_without_a_pace_keep_all_and_stop_at_the_most() -> None:
    runs = Runs(None, 1000.0, 10.0)
    rows = [0 for _ in runs.each(5, most=7)]
    assert len(rows) == 7
    assert runs.enough
    assert runs.kept(rows) == rows


def test_waiting_for_a_calm_core_leaves_most_of_the_time_limit() -> None:
    settings = MeasureSettings(time_cap_ms=300, layers_ms=100, patience=10)
    short, long = (bounded_waiting(settings, ModelLimits(wall_s=wall_s)) for wall_s in (1, 60))
    assert short.patience * (2 * 300 + 100) == pytest.approx(250)
    assert long == settings
