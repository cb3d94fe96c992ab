"""Samples of the device's state, in the background."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from adaptive_runtime.state.sensing.board import BatterySensor, FrequencySensor, TemperatureSensor
from adaptive_runtime.state.sensing.cpu import CpuSensor
from adaptive_runtime.state.sensing.gpu import GpuSensor
from adaptive_runtime.state.sensing.hit_rate import HitRate
from adaptive_runtime.state.sensing.memory import MemorySensor
from adaptive_runtime.state.sensing.pressure import PressureSensor
from adaptive_runtime.state.sensing.reading import DeadlineReader, Sensor
from adaptive_runtime.state.sensing.state import SensedState
from profiling_agents.sensing.sensors import SYSTEM


def device_sensors(root: Path = SYSTEM) -> tuple[Sensor, ...]:
    """All sensors; the GPU's only if there is one."""
    gpu = GpuSensor.find()
    return (
        CpuSensor(root),
        MemorySensor(root),
        PressureSensor(root),
        FrequencySensor(root),
        TemperatureSensor(root),
        BatterySensor(root),
        *([] if gpu is None else [gpu]),
    )


class Sensing:
    """Takes a sample every `every_s` seconds after `start` (or in a with block). `latest`: the last sample.

    deadline_s: time limit of one sensor. hit_rate: fills the state's cache-hit rate; True: the chain of this device, which is
    calibrated now. tell: receives each sample that is taken in the background, in its thread. Times are those of the monotonic
    clock; the wall clock is only recorded.
    """

    def __init__(
        self,
        sensors: Sequence[Sensor] | None = None,
        *,
        every_s: float = 1.0,
        deadline_s: float = 0.2,
        hit_rate: HitRate | bool = False,
        tell: Callable[[SensedState], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = DeadlineReader(device_sensors() if sensors is None else sensors, deadline_s)
        self._every_s, self._clock, self._wall_clock = every_s, clock, wall_clock
        self._hit_rate = HitRate.calibrated() if hit_rate is True else hit_rate or None
        self._tell = tell
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.latest: SensedState | None = None

    def sample(self) -> SensedState:
        """Take a sample now, in the calling thread."""
        with self._lock:
            values, faults = self._reader.read()
            state = SensedState(at_s=self._clock(), wall_s=self._wall_clock(), faults=faults, **values)
            if self._hit_rate is not None:
                rate, source = self._hit_rate.estimate(state)
                state = state.model_copy(update={"hit_rate": rate, "hit_rate_by": source})
            self.latest = state
        return state

    def start(self) -> None:
        """Sample in the background until `stop`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._keep_sampling, name="sensing", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the background thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._reader.close()

    def __enter__(self) -> "Sensing":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _keep_sampling(self) -> None:
        due_s = time.monotonic()
        while not self._stop.wait(max(0.0, due_s - time.monotonic())):
            state = self.sample()
            if self._tell is not None:
                self._tell(state)
            due_s = max(due_s + self._every_s, time.monotonic())
