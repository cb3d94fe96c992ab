"""Energy of running a model, by the device's own sensors.

Only one kind of sensor is used, so that nothing counts twice: NVML for a model on a GPU; else the first available of RAPL,
INA3221 and other rails. Counters are read before and after; rails that show power are sampled and integrated meanwhile.
The energy of idle parts of the device is included. A sensor that cannot be read, or shows 0, makes the energy unknown.
"""

import importlib
import importlib.util
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from profiling_agents.messages import PowerSensor
from profiling_agents.sensing.machine import Repeat
from profiling_agents.sensing.sensors import SYSTEM, WHOLE_BOARD, board_rails, rapl_domains, read_number

SAMPLE_S = 0.005

PARTS = 20
"""Energy of one run is measured over about this many parts; the clock is checked after each."""

PATIENCE = 4
"""A counter that stood still gets this many times the duration: some are updated seldom."""

Reading = Callable[[], int | None]


@dataclass(frozen=True, slots=True)
class Counter:
    """An energy counter [µJ] that starts anew above `range_uj`, if that is known."""

    read_uj: Reading
    range_uj: int | None = None

    def between(self, before_uj: int | None, after_uj: int | None) -> int | None:
        """Energy between two readings [µJ], at most one overflow apart; None when unknown."""
        if not before_uj or not after_uj:
            return None
        if after_uj >= before_uj:
            return after_uj - before_uj
        return None if self.range_uj is None else after_uj + self.range_uj - before_uj


class EnergyMeter:
    """Energy by counters, or by rails whose power [µW] is integrated over time."""

    def __init__(self, kind: str, counters: Sequence[Counter] = (), rails: Sequence[Reading] = ()) -> None:
        self.kind = kind
        self._counters = tuple(counters)
        self._rails = tuple(rails)

    def measure_mj(self, run: Callable[[], object]) -> float | None:
        """Energy of the whole device while `run()` runs [mJ]; None when a sensor gives no value."""
        before = [counter.read_uj() for counter in self._counters]
        with _sampled(self._rails) as samples:
            run()
        after = [counter.read_uj() for counter in self._counters]
        triples = zip(self._counters, before, after, strict=True)
        parts: list[float | None] = [counter.between(first, last) for counter, first, last in triples]
        if self._rails:
            parts.append(_integral_uj(samples))
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or sum(known) <= 0:
            return None
        return sum(known) / 1e3

    def of_one_run_mj(self, repeat: Repeat, p50_ms: float, energy_ms: float) -> float | None:
        """Energy of one run [mJ] over runs of about `p50_ms` that last `energy_ms` by the clock, or None.

        If a counter shows nothing in that time, it is repeated over `PATIENCE` times as long.
        """
        energy_mj = self._of_one_run_mj(repeat, p50_ms, energy_ms)
        if energy_mj is None and self._counters:
            energy_mj = self._of_one_run_mj(repeat, p50_ms, PATIENCE * energy_ms)
        return energy_mj

    def _of_one_run_mj(self, repeat: Repeat, p50_ms: float, energy_ms: float) -> float | None:
        done, some = 0, math.ceil(energy_ms / p50_ms / PARTS)

        def keep_running() -> None:
            nonlocal done
            ends_s = time.perf_counter() + energy_ms * 1e-3
            while not done or time.perf_counter() < ends_s:
                repeat(some)
                done += some

        energy_mj = self.measure_mj(keep_running)
        return None if energy_mj is None else energy_mj / done


def find_meter(*, on_gpu: bool = False, root: Path = SYSTEM) -> EnergyMeter | None:
    """The meter of this device, or None when it has no readable sensor."""
    if on_gpu:
        return _nvml()
    domains = [folder for _, folder in rapl_domains(root)]
    if domains:
        readings = (partial(read_number, folder / "energy_uj") for folder in domains)
        ranges = (read_number(folder / "max_energy_range_uj") for folder in domains)
        return EnergyMeter("rapl", counters=list(map(Counter, readings, ranges)))
    rails = list(board_rails(root))
    for kind in ("ina3221", "hwmon"):
        chosen = [pair for pair in rails if pair[0].kind == kind]
        whole = [pair for pair in chosen if pair[0].name in WHOLE_BOARD]
        if chosen:
            return EnergyMeter(kind, rails=[_rail(files) for _, files in whole or chosen])
    return None


def gpu_sensors() -> tuple[PowerSensor, ...]:
    """The GPU's energy counter, if pynvml is installed and finds exactly one GPU with a counter."""
    return () if _nvml() is None else (PowerSensor(name="gpu", kind="nvml", measures="energy"),)


def _rail(files: Sequence[Path]) -> Reading:
    """Power [µW]: the value of the one file, or the product of voltage [mV] and current [mA]."""

    def read_uw() -> int | None:
        product = 1
        for file in files:
            value = read_number(file)
            if value is None:
                return None
            product *= value
        return product

    return read_uw


def _nvml() -> EnergyMeter | None:
    """The counter of the only GPU; with several GPUs it is unknown which of them runs the model."""
    if importlib.util.find_spec("pynvml") is None:
        return None
    nvml: Any = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
        if nvml.nvmlDeviceGetCount() != 1:
            return None
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(device)
    except nvml.NVMLError:
        return None
    return EnergyMeter("nvml", counters=[Counter(lambda: 1000 * int(nvml.nvmlDeviceGetTotalEnergyConsumption(device)))])


Sample = tuple[float, list[int | None]]


@contextmanager
def _sampled(rails: Sequence[Reading]) -> Iterator[list[Sample]]:
    """Samples (time [s], power of each rail [µW]) from the beginning to the end of the block."""
    samples: list[Sample] = []
    ended = threading.Event()

    def sample() -> None:
        samples.append((time.perf_counter(), [read_uw() for read_uw in rails]))

    def keep_sampling() -> None:
        while not ended.wait(SAMPLE_S):
            sample()

    if not rails:
        yield samples
        return
    sample()
    thread = threading.Thread(target=keep_sampling, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
        sample()


def _integral_uj(samples: Sequence[Sample]) -> float | None:
    """Energy [µJ] under the sampled power, by trapezoids; None when a rail once showed nothing or 0."""
    powers = [[power for power in row if power] for _, row in samples]
    if any(len(known) < len(row) for known, (_, row) in zip(powers, samples, strict=True)):
        return None
    totals = [(at_s, sum(known)) for (at_s, _), known in zip(samples, powers, strict=True)]
    return sum((b_s - a_s) * (a_uw + b_uw) / 2 for (a_s, a_uw), (b_s, b_uw) in itertools.pairwise(totals))
