"""A SubNet of a bundle, open on the coordinator and connected to other devices.

Legend: N samples, C channels, H height, W width.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.devices import HOME, DeviceAddress
from adaptive_runtime.offload.links import SharedLink
from adaptive_runtime.offload.placed.expected import ExpectedPlacement, RunRatio, expected
from adaptive_runtime.offload.placed.runtime import NetworkRuntime, PlacedRun, StandInTimes
from adaptive_runtime.offload.split import (
    EnvelopePlacements,
    PlacementPlans,
    SplitAnswer,
    SplitNetwork,
    SplitOptions,
    SplitSubNet,
)
from adaptive_runtime.offload.split.home import HomeSegments

Array = NDArray[np.float32]
PATIENCE = 2.0
"""The coordinator waits for other devices at least this multiple of their expected duration."""
LEAST_DEADLINE_MS = 1e-3


@dataclass(frozen=True, slots=True)
class SharedDevices:
    """Shared measures of SubNets over the same devices. Several threads may use it.

    ratios: of the runs so far, by the devices of the plan besides the coordinator. links: by device.
    """

    ratios: defaultdict[frozenset[str], RunRatio] = field(default_factory=lambda: defaultdict(RunRatio))
    links: defaultdict[str, SharedLink] = field(default_factory=lambda: defaultdict(SharedLink))

    @property
    def version(self) -> int:
        """Changes after each measurement."""
        return sum(link.version for link in self.links.values()) + sum(one.runs for one in tuple(self.ratios.values()))


class PlacedSubNet:
    """One SubNet. It runs by the offloading plan that is currently fastest; the coordinator is the fallback.

    The choice depends on the links and the coordinator's load. devices: by the names of the plans. home: runs segments in this
    process; None: the runtime of their files. shared: measures of SubNets over the same devices; None: no other SubNets exist.
    Close it after use.
    """

    def __init__(
        self,
        split: SplitSubNet,
        plans: PlacementPlans,
        devices: Mapping[str, DeviceAddress],
        options: SplitOptions,
        home: HomeSegments | None = None,
        shared: SharedDevices | None = None,
    ) -> None:
        self.choice = EnvelopePlacements(plans, coding=options.coding, sends=True)
        self._home, self._options = HomeSegments(split) if home is None else home, options
        self.shared = SharedDevices() if shared is None else shared
        self.network = SplitNetwork(split, devices, self.choice, options, self._home, self.shared.links)
        self._last = len(split.subnet.segments) - 1
        self._batch = split.subnet.shapes[split.subnet.input][0]
        self._expected: ExpectedPlacement | None = None

    def expected(self, slow_down: float, deviation: float) -> ExpectedPlacement | None:
        """Expected latency of a request for the coordinator's slow-down and its deviation.

        None: no other device can take part.
        """
        links = self.network.links
        self.choice.known_slow_down = slow_down
        found = self.choice.sending(links, slow_down)
        if found is None:
            self._expected = None
        else:
            self._expected = expected(found, links, deviation, self.shared.ratios[frozenset(found.plan.peers)].now)
        return self._expected

    def runs(self, within_ms: float | None, samples: int, stand_in_ms: float | None = None) -> NetworkRuntime:
        """The runtime for one request of so many samples. within_ms: rest of its budget; None: no budget.

        stand_in_ms: duration of a fallback on the coordinator, for which a run gives up in time (NotBackError); None: no
        fallback.
        """
        known, times = self._expected, None
        if stand_in_ms is not None:
            times = StandInTimes(stand_in_ms, 0.0 if known is None else known.mean_ms + known.deviation_ms)
        return NetworkRuntime(self._batch, self._begin, within_ms, samples, times)

    @property
    def missing(self) -> str:
        """The reason why no other device takes part, in words."""
        states = self.network.states.items()
        lines = (f"{name} is {state}" + (f" ({why})" if why else "") for name, (state, why) in states if state != "in")
        return ", ".join(lines) or "nothing is known of its links, or it is not heard any more"

    def close(self) -> None:
        """End the connections."""
        self.network.close()

    def _begin(self, x_NCHW: Array, within_ms: float | None) -> PlacedRun:
        """Start a run; it updates the expectations only if it followed a plan over other devices."""
        known = self._expected

        def learn(answer: SplitAnswer) -> None:
            if known is not None and answer.at_home is None and frozenset(answer.devices) - {HOME} == known.peers:
                planned_ms = self.choice.later_ms(known.sent, self.network.links)  # with the links after this run
                self.shared.ratios[known.peers].add(answer.latency_ms / planned_ms)

        future = self.network.submit(x_NCHW, self._deadline_ms(within_ms, known))
        return PlacedRun(future, learn, self.network.leave)

    def _deadline_ms(self, within_ms: float | None, known: ExpectedPlacement | None) -> float:
        """Time by which the coordinator finishes the request if other devices have not answered.

        The coordinator waits at least twice their usual duration, even if it is late then: earlier they are not at fault.
        """
        options = self._options
        deviations = options.deviations
        alone_ms = self._home.predicted_ms(0, self._last, deviations) + options.spare_ms
        usual_ms = 0.0 if known is None else PATIENCE * known.mean_ms + deviations * known.deviation_ms
        return max(within_ms or 0.0, alone_ms + usual_ms, LEAST_DEADLINE_MS)
