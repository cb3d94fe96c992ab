"""Sensors that stall, fail or tell nonsense, and clocks that jump: the others go on, and each fault is one line."""

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptive_runtime.state.sensing import DeadlineReader, MemorySensor, Sensing, Sensor, TemperatureSensor
from profiling_agents.sensing.sensors import SYSTEM
from tests.support.runtime.device_files import Clock, write

DEADLINE_S = 1.0
"""More than the others on the machine keep a sensor from its answer."""


class Answers:
    """A sensor that gives what it was told, or raises it."""

    def __init__(self, name: str, answer: dict[str, Any] | Exception) -> None:
        self.name, self.answer = name, answer

    def read(self) -> dict[str, Any]:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[Path]:
    """A device whose temperature never answers: its file is a pipe that nobody writes."""
    pipe = tmp_path / "sys/class/thermal/thermal_zone0/temp"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    yield tmp_path
    writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # lets a reader that still waits go
    os.close(writer)


def test_a_stalled_sensor_stops_no_other_and_is_told_in_one_line(
    stalled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = DeadlineReader([TemperatureSensor(stalled), MemorySensor(SYSTEM)], DEADLINE_S)
    with caplog.at_level(logging.INFO, "adaptive_runtime.state.sensing"):
        values, faults = reader.read()
        waiting = threading.active_count()
        again, _ = reader.read()
        assert threading.active_count() <= waiting, "a sensor that is known to stall is not waited for"
    assert values["memory_total_mib"] > 0
    assert again["memory_total_mib"] > 0
    assert "temperature_c" not in values
    assert [(fault.sensor, fault.kind) for fault in faults] == [("temperature", "stalled")]
    assert "\n" not in faults[0].line
    assert len(caplog.records) == 1, "told once, not with every sample"
    reader.close()


def test_a_stalled_sensor_that_answers_later_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = tmp_path / "sys/class/thermal/thermal_zone0/temp"
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    threads = threading.active_count()
    reader = DeadlineReader([TemperatureSensor(tmp_path)], DEADLINE_S)
    with caplog.at_level(logging.INFO, "adaptive_runtime.state.sensing"):
        for _ in range(3):
            _, faults = reader.read()
            assert [fault.kind for fault in faults] == ["stalled"]
        assert threading.active_count() <= threads + 1, "no thread for each sample"
        pipe.write_text("40000\n")
        pipe.unlink()
        write(tmp_path, {"sys/class/thermal/thermal_zone0/temp": 41000})
        deadline_s = time.monotonic() + 60
        while faults and time.monotonic() < deadline_s:
            values, faults = reader.read()
            time.sleep(0.01)
    assert values["temperature_c"] == 41.0
    assert caplog.records[-1].getMessage() == "sensor 'temperature': answers again"
    reader.close()


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (RuntimeError("bus\nerror"), "sensor 'odd': failed (RuntimeError: bus error); its values are unknown"),
        (
            {"battery": 2.5},
            "sensor 'odd': failed (battery: Input should be less than or equal to 1); its values are unknown",
        ),
        ({"colour": 1}, "sensor 'odd': failed (colour: Extra inputs are not permitted); its values are unknown"),
    ],
)
def test_a_sensor_that_fails_or_tells_nonsense_is_one_line(answer: dict[str, Any] | Exception, line: str) -> None:
    odd = Answers("odd", answer)
    reader = DeadlineReader([odd, Answers("fine", {"battery": 0.5})], 5.0)
    values, faults = reader.read()
    assert values == {"battery": 0.5}
    assert [fault.line for fault in faults] == [line]
    odd.answer = {"plugged": True}
    assert reader.read() == ({"battery": 0.5, "plugged": True}, ())
    reader.close()


def test_a_jump_of_the_wall_clock_does_not_matter() -> None:
    wall, clock = Clock(1e9), Clock(50.0)
    sensing = Sensing([Answers("fine", {"battery": 0.5})], clock=clock, wall_clock=wall)
    first = sensing.sample()
    wall.now_s, clock.now_s = 1e9 - 86400, 51.0
    second = sensing.sample()
    assert second.at_s - first.at_s == 1.0
    assert second.wall_s < first.wall_s
    sensing.stop()


def test_the_background_samples_while_a_sensor_stalls(stalled: Path) -> None:
    sensors: list[Sensor] = [TemperatureSensor(stalled), MemorySensor(SYSTEM)]
    with Sensing(sensors, every_s=0.05, deadline_s=DEADLINE_S) as sensing:
        seen: set[float] = set()
        deadline_s = time.monotonic() + 60
        while len(seen) < 5 and time.monotonic() < deadline_s:
            if sensing.latest is not None:
                seen.add(sensing.latest.at_s)
            time.sleep(0.01)
        latest = sensing.latest
    assert len(seen) >= 5
    assert latest is not None
    assert latest.memory_total_mib is not None
    assert [fault.sensor for fault in latest.faults] == ["temperature"]
