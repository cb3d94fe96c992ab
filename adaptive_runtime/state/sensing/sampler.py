"""Samples of the device's state, in the background.

Sensors are read in turn in a separate thread, so that a stalled sensor stops neither the others nor the caller.

A thread that waits for a stalled sensor is left behind, and a new thread continues with the next sensor. The stalled sensor
is read again once its thread has returned. There is one thread, and one more for each stalled sensor.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

from pydantic import ValidationError

from adaptive_runtime.state.sensing.hit_rate import HitRate
from adaptive_runtime.state.sensing.sensors import (
    BatterySensor,
    CpuSensor,
    FrequencySensor,
    GpuSensor,
    MemorySensor,
    PressureSensor,
    TemperatureSensor,
)
from adaptive_runtime.state.sensing.state import SensedState, SensorFault
from profiling_agents.messages import one_line
from profiling_agents.sensing.sensors import SYSTEM

logger = logging.getLogger("adaptive_runtime.state.sensing")
Values = Mapping[str, Any]
"""Fields of `SensedState`."""


class Sensor(Protocol):
    """A part of the device. read: the currently known fields; it may be slow, and may raise."""

    @property
    def name(self) -> str: ...

    def read(self) -> Values: ...


class _Round:
    """Sensors that one thread reads in turn. `current`: the sensor being read. `left`: the caller waits no more."""

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self.sensors = sensors
        self.found: dict[str, Values | Exception] = {}
        self.current: Sensor | None = None
        self.left = False
        self.ended = threading.Event()

    def run(self) -> None:
        for sensor in self.sensors:
            if self.left:
                break
            self.current = sensor
            try:
                self.found[sensor.name] = _checked(sensor.read())
            except Exception as error:  # noqa: BLE001 - of any library; reported as the fault of this sensor
                self.found[sensor.name] = error
        self.ended.set()


class DeadlineReader:
    """Reads sensors, each within `deadline_s`. Logs when a sensor falls silent, and when it answers again."""

    def __init__(self, sensors: Sequence[Sensor], deadline_s: float) -> None:
        self._sensors = tuple(sensors)
        self._deadline_s = deadline_s
        self._stalled: dict[str, _Round] = {}
        self._described: dict[str, str] = {}
        self._rounds: SimpleQueue[_Round | None] | None = None

    def read(self) -> tuple[dict[str, Any], tuple[SensorFault, ...]]:
        """Values of all sensors that answer, and the faults of the others."""
        self._stalled = {name: each for name, each in self._stalled.items() if not each.ended.is_set()}
        due = [sensor for sensor in self._sensors if sensor.name not in self._stalled]
        found: dict[str, Values | Exception] = {}
        while due:
            read = self._read(due)
            found |= read.found
            due = [sensor for sensor in due if sensor.name not in found and sensor.name not in self._stalled]
        values = {
            field: value for answer in found.values() if isinstance(answer, Mapping) for field, value in answer.items()
        }
        faults = {name: self._fault(name, found.get(name)) for name in self._names(found)}
        self._tell(faults)
        return values, tuple(faults.values())

    def close(self) -> None:
        """End the thread once it waits for no sensor."""
        if self._rounds is not None:
            self._rounds.put(None)
            self._rounds = None

    def _read(self, sensors: Sequence[Sensor]) -> _Round:
        """Run one round, up to its end or to a stalled sensor, whose thread is left behind."""
        started = _Round(sensors)
        if self._rounds is None:
            self._rounds = SimpleQueue()
            threading.Thread(target=_serve, args=(self._rounds,), name="sensors", daemon=True).start()
        self._rounds.put(started)
        before: object = None
        while not started.ended.wait(self._deadline_s):
            current = started.current
            if current is not None and current is before:
                started.left = True
                self._stalled[current.name] = started
                self.close()
                break
            before = current
        return started

    def _names(self, found: Mapping[str, Values | Exception]) -> list[str]:
        return [sensor.name for sensor in self._sensors if not isinstance(found.get(sensor.name), Mapping)]

    def _fault(self, name: str, error: Values | Exception | None) -> SensorFault:
        if isinstance(error, Exception):
            reason = one_line(error) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
            line = " ".join(f"sensor '{name}': failed ({reason}); its values are unknown".split())
            return SensorFault(sensor=name, kind="failed", line=line)
        line = f"sensor '{name}': no answer within {self._deadline_s:g} s; its values are unknown until it answers"
        return SensorFault(sensor=name, kind="stalled", line=line)

    def _tell(self, faults: Mapping[str, SensorFault]) -> None:
        for name in [name for name in self._described if name not in faults]:
            del self._described[name]
            logger.info("sensor '%s': answers again", name)
        for name, fault in faults.items():
            if self._described.get(name) != fault.kind:
                self._described[name] = fault.kind
                logger.warning(fault.line)


def _checked(values: Values) -> Values:
    """The values, if they are valid fields of a state."""
    SensedState.model_validate({"at_s": 0.0, "wall_s": 0.0, **values})
    return values


def _serve(rounds: "SimpleQueue[_Round | None]") -> None:
    """Run rounds until None is received."""
    while (each := rounds.get()) is not None:
        each.run()


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
