"""Sensors are read in turn in a separate thread, so that a stalled sensor stops neither the others nor the caller.

A thread that waits for a stalled sensor is left behind, and a new thread continues with the next sensor. The stalled sensor
is read again once its thread has returned. There is one thread, and one more for each stalled sensor.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

from pydantic import ValidationError

from adaptive_runtime.state.sensing.state import SensedState, SensorFault
from profiling_agents.messages import one_line

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
            except Exception as error:  # noqa: BLE001 - of any library; told as the fault of this sensor
                self.found[sensor.name] = error
        self.ended.set()


class DeadlineReader:
    """Reads sensors, each within `deadline_s`. Logs when a sensor falls silent, and when it answers again."""

    def __init__(self, sensors: Sequence[Sensor], deadline_s: float) -> None:
        self._sensors = tuple(sensors)
        self._deadline_s = deadline_s
        self._stalled: dict[str, _Round] = {}
        self._told: dict[str, str] = {}
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
        for name in [name for name in self._told if name not in faults]:
            del self._told[name]
            logger.info("sensor '%s': answers again", name)
        for name, fault in faults.items():
            if self._told.get(name) != fault.kind:
                self._told[name] = fault.kind
                logger.warning(fault.line)


def _checked(values: Values) -> Values:
    """The values, if they are valid fields of a state."""
    SensedState.model_validate({"at_s": 0.0, "wall_s": 0.0, **values})
    return values


def _serve(rounds: "SimpleQueue[_Round | None]") -> None:
    """Run rounds until None is received."""
    while (each := rounds.get()) is not None:
        each.run()
