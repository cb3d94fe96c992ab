"""Requests in flight."""

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.devices import HOME
from adaptive_runtime.exits import SampleDecision
from adaptive_runtime.offload.split.answers import LegTimes, SplitAnswer
from adaptive_runtime.offload.split.plans import Leg
from adaptive_runtime.offload.split.routes import Route
from profiling_agents.messages import ActivationCoding

Array = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class Flight:
    """A request in flight. values: tensors known on the coordinator, by name. Times in seconds of `time.perf_counter`.

    begun_s: start in the thread that runs requests. legs: remaining segments. ready: the coordinator should run the next leg.
    remote: other devices run those of `route`, since `sent_s`. guaranteed: the coordinator can finish it in time, together with
    all others that count as guaranteed, if no other device answers any more. left_alone: nobody waits for the answer, and the
    coordinator does nothing more for it. coding: of sent tensors. decision: whether it leaves at exits, as long as all of these
    are on the coordinator. left: the answer of the exit at which it left.
    """

    values: dict[str, Array]
    start_s: float
    deadline_s: float
    future: "Future[SplitAnswer]"
    begun_s: float = 0.0
    legs: list[Leg] = field(default_factory=list)
    coding: ActivationCoding = "fp32"
    ready: bool = False
    running: bool = False
    guaranteed: bool = False
    left_alone: bool = False
    sent_s: float = 0.0
    route: Route = ()
    remote: "asyncio.Task[None] | None" = None
    at_home: str | None = None
    decision: SampleDecision | None = None
    left: Array | None = None
    done: list[LegTimes] = field(default_factory=list)

    @property
    def came_s(self) -> float:
        """Time to reach the thread that runs requests; 0 after the first leg, in which it was counted."""
        return 0.0 if self.done else self.begun_s - self.start_s

    def come_home(self, reason: str) -> None:
        """Let the coordinator run the rest of the request."""
        rest = Leg(HOME, self.legs[0].first, self.legs[-1].last)
        self.legs, self.remote, self.ready = [rest], None, True
        self.at_home = self.at_home or reason

    def passed(self, times: LegTimes, values: dict[str, Array]) -> None:
        """Record a finished leg."""
        self.values.update(values)
        self.done.append(times)
        self.legs.pop(0)
        self.remote, self.ready, self.running = None, False, False

    def leave(self, times: LegTimes, answer: Array) -> None:
        """Record the answer of an exit on the coordinator: no segments remain."""
        self.passed(times, {})
        self.legs, self.left = [], answer

    def answered(self, answer: Array, end_s: float) -> SplitAnswer:
        """The answer, once no leg is left."""
        exit = None if self.decision is None or self.left is None else self.decision.exit
        return SplitAnswer(
            answer=answer,
            latency_ms=(end_s - self.start_s) * 1e3,
            devices=tuple(leg.device for leg in self.done),
            legs=tuple(self.done),
            at_home=self.at_home,
            late=end_s > self.deadline_s,
            exit=exit,
        )
