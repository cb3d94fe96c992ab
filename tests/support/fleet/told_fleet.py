"""Devices of a registry that tell sums, window by window, without HTTP."""

import numpy as np

from adaptive_runtime.fleet import EnrolAsked, RequestSums, Telemetry
from tasks.operations.fleet.devices import enrol, list_devices, new_enrolment
from tasks.operations.fleet.registry import Registry
from tasks.operations.fleet.rollouts import advance, begin, record
from tasks.operations.fleet.settings import RolloutSettings

WINDOW_S = 100.0
SETTINGS = RolloutSettings(
    stages=(0.2,), missed=(0.05,), least_devices=12, windows_before=4, least_windows=2, most_windows=6, draws=999
)
ASKED = EnrolAsked(name="kitchen", kind="camera", fingerprint="ab" * 32)


class ToldFleet:
    """Sixty enrolled devices that tell the sums of each window."""

    def __init__(self, registry: Registry, bundle: str) -> None:
        self.registry, self.bundle, self.window, self.sequence = registry, bundle, 0, 0
        self.rng = np.random.default_rng(0)
        with registry.writing() as connection:
            self.devices = [
                enrol(connection, one.token, ASKED).device
                for one in new_enrolment(connection, "me", valid_s=60, count=60)
            ]

    @property
    def now_s(self) -> float:
        """In the window that is told next."""
        return (self.window + 0.5) * WINDOW_S

    def assigned(self) -> set[str]:
        """Devices that should run the bundle."""
        with self.registry.reading() as connection:
            return {one.id for one in list_devices(connection) if one.assigned == self.bundle}

    def tell(self, windows: int, slower: float = 0.0) -> list[str]:
        """So many windows; after each one what was decided. slower: ln of the factor by the bundle."""
        decided: list[str] = []
        for _ in range(windows):
            by_bundle = self.assigned()
            self.sequence += 1
            with self.registry.writing() as connection:
                for device in self.devices:
                    new = device in by_bundle
                    mean = 2 + slower * new + self.rng.normal(0, 0.02)
                    sums = RequestSums(requests=100, log_latency=100 * mean, in_time=100, confidence=80)
                    told = Telemetry(sequence=self.sequence, bundle=self.bundle if new else None, sums=sums)
                    record(connection, device, told, self.now_s, WINDOW_S)
                self.window += 1
                decided += [one.action for one in advance(connection, self.now_s, WINDOW_S).values()]
        return decided

    def begin(self, settings: RolloutSettings = SETTINGS) -> int:
        """A roll-out, after the windows that devices are compared with themselves in."""
        self.tell(SETTINGS.windows_before)
        with self.registry.writing() as connection:
            return begin(connection, self.bundle, settings, (), self.now_s, WINDOW_S)
