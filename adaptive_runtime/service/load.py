"""The load of the device while it serves: sensed each second, and forecast."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adaptive_runtime.forecast import Forecaster
from adaptive_runtime.sensing import Sensing, device_sensors, load_index
from profiling_agents.messages import Message


class LoadTold(Message):
    """load: index, 0 to 1, of the latest sample; None: unknown. forecast: of the next seconds; method: how the first was made.

    faults: sensors without values, each with one line. pressure_cpu: share of time in which some task waited for a CPU.
    """

    load: float | None = None
    forecast: tuple[float, ...] = ()
    method: str | None = None
    pressure_cpu: float | None = None
    memory_available_mib: float | None = None
    temperature_c: float | None = None
    battery: float | None = None
    faults: tuple[str, ...] = ()


class LoadWatch:
    """Senses in a thread of its own. `now`: what is known of the load."""

    def __init__(self, root: Path, every_s: float = 1.0) -> None:
        self.now = LoadTold()
        self._sensing, self._every_s = Sensing(device_sensors(root)), every_s
        self._forecaster = Forecaster()
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator["LoadWatch"]:
        """Sense until the end of the block."""
        thread = threading.Thread(target=self._watch, name="load", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()
            self._sensing.stop()

    def _watch(self) -> None:
        while not self._over.wait(self._every_s):
            state = self._sensing.sample()
            load = load_index(state)
            forecast = self._forecaster.observe(load)
            self.now = LoadTold(
                load=load,
                forecast=() if forecast is None else tuple(forecast.values_H.tolist()),
                method=None if forecast is None else forecast.methods[0],
                pressure_cpu=state.pressure_cpu.avg10 if state.pressure_cpu is not None else None,
                memory_available_mib=state.memory_available_mib,
                temperature_c=state.temperature_c,
                battery=state.battery,
                faults=tuple(fault.line for fault in state.faults),
            )
