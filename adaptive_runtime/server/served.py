"""Models that a service can serve, a bundle or a SubNet over several devices, and the load of the device meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.model.adapting import Adaptation, AdaptingState
from adaptive_runtime.model.answers import ModelAnswer, ModelState
from adaptive_runtime.server.protocol import InferenceFormat
from adaptive_runtime.server.recent import ChoiceMemory, LoggedDecision
from adaptive_runtime.state.forecast import Forecast, Forecaster
from adaptive_runtime.state.sensing import HitRateSource, SensedState, Sensing, device_sensors, load_index
from profiling_agents.messages import Message


class LoadReport(Message):
    """load: index, 0 to 1, of the latest sample; None: unknown.

    forecast: of the next seconds; method: that of the first value. slow_down: factor by which the serving variant is slower
    than predicted; None: the model does not adapt. pressure_cpu: share of time in which some task waited for a CPU. hit_rate:
    of the processor's caches; hit_rate_by: counters, probe or learned; None: not requested, or not available. faults: sensors
    without values, one line each.
    """

    load: float | None = None
    forecast: tuple[float, ...] = ()
    method: str | None = None
    slow_down: float | None = None
    pressure_cpu: float | None = None
    memory_available_mib: float | None = None
    temperature_c: float | None = None
    battery: float | None = None
    hit_rate: float | None = None
    hit_rate_by: HitRateSource | None = None
    faults: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, device: SensedState | None, load: float | None, forecast: Forecast | None, slow_down: float | None
    ) -> "LoadReport":
        """From a sample and the forecast after it."""
        found = cls(
            load=load,
            forecast=() if forecast is None else tuple(forecast.values_H.tolist()),
            method=None if forecast is None else forecast.methods[0],
            slow_down=slow_down,
        )
        if device is None:
            return found
        values = {
            "pressure_cpu": None if device.pressure_cpu is None else device.pressure_cpu.avg10,
            "memory_available_mib": device.memory_available_mib,
            "temperature_c": device.temperature_c,
            "battery": device.battery,
            "hit_rate": device.hit_rate,
            "hit_rate_by": device.hit_rate_by,
            "faults": tuple(fault.line for fault in device.faults),
        }
        return found.model_copy(update=values)


class AdaptedLoad:
    """The load that an adapting model has sensed; the model may be replaced meanwhile."""

    def __init__(self, adaptation: Callable[[], Adaptation | None]) -> None:
        self._adaptation = adaptation

    @property
    def now(self) -> LoadReport:
        """The load that the next decision can use."""
        state = self._state
        return LoadReport.of(state.device, state.load, state.forecast, state.slow_down[0])

    @property
    def device(self) -> SensedState | None:
        """The last sample."""
        return self._state.device

    @property
    def _state(self) -> AdaptingState:
        adaptation = self._adaptation()
        assert adaptation is not None, "a model that adapts is followed by one"
        return adaptation.state


class LoadWatch:
    """Senses in a separate thread, for models that do not adapt. `now`: the current load.

    hit_rate: whether the hit rate of the caches is sensed, too.
    """

    def __init__(self, root: Path, every_s: float = 1.0, *, hit_rate: bool = False) -> None:
        self.now = LoadReport()
        self._sensing, self._every_s = Sensing(device_sensors(root), hit_rate=hit_rate), every_s
        self._forecaster = Forecaster()
        self._over = threading.Event()

    @property
    def device(self) -> SensedState | None:
        """The last sample."""
        return self._sensing.latest

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
            self.now = LoadReport.of(state, load, self._forecaster.observe(load), None)


LoadSource = AdaptedLoad | LoadWatch


class DeviceReport(Message):
    """Another device and its link, as measured. state: in, out, connecting, excluded; reason: of the state. None: unknown.

    answered: number of requests of which it has run segments.
    """

    name: str
    state: str
    reason: str
    up_mbps: float | None
    down_mbps: float | None
    round_trip_ms: float | None
    answered: int


class DevicesReport(Message):
    """A SubNet over several devices at one moment. plan: the device of each segment, for the latest request.

    If a bundle serves on the coordinator, the plan is `coordinator` alone. plan_ms, coordinator_ms: current prediction for
    this plan and for the coordinator alone; None: a device of the plan is out, or none is needed. slow_down: of the
    coordinator. changes: number of plan changes so far. on_coordinator: requests that the coordinator has finished against
    their plan; wrong: answers that failed spot checks.
    """

    plan: tuple[str, ...]
    plan_ms: float | None
    coordinator_ms: float
    slow_down: float
    changes: int
    on_coordinator: int
    wrong: int
    devices: tuple[DeviceReport, ...]


class DevicesSource(Protocol):
    """now: the current state. news: changes of plan and devices since the last call."""

    @property
    def now(self) -> DevicesReport: ...

    def news(self) -> tuple[LoggedDecision, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """An open model.

    infer: the answer to images (N, C, H, W), by a time of the monotonic clock if the model can; by the named SubNet, if one is
    named. subnets: digests that clients may name now. works: false if no SubNet is left that could answer. version: used by
    clients to address it. memory: stores the choice. devices: None: one device runs everything.
    """

    infer: Callable[[NDArray[np.float32], float, str | None], ModelAnswer]
    subnets: Callable[[], tuple[str, ...]]
    state: Callable[[], ModelState]
    works: Callable[[], bool]
    load: LoadSource
    format: InferenceFormat
    version: str
    memory: ChoiceMemory | None = None
    devices: DevicesSource | None = None
