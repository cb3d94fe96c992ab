"""The environment of the services: the load of other processes, and the times of requests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np

from adaptive_runtime.state.traces import LoadTrace
from tasks.deploy.stress.settings import PHASES, Settings

BUSY = 0.5
"""Pressure of one kind from which a time of a recorded trace counts as stress."""
CALM, STRESS = PHASES[0][0], PHASES[1][0]


@dataclass(frozen=True, slots=True)
class StressSchedule:
    """trace: the pressure over time, and the requests. phase: the name of the phase at a time."""

    trace: LoadTrace
    phase: Callable[[float], str]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The recorded trace, else the phases. AdaptiveError in one line: the file is no trace."""
        if settings.trace is None:
            scenario = settings.scenario
            trace = scenario.trace((), seed=0)
            return cls(_paced(trace, settings.requests_per_s), lambda at_s: scenario.at(at_s).phase.name)
        trace = LoadTrace.read(settings.trace)
        trace = trace if trace.arrivals_s else _paced(trace, settings.requests_per_s)
        return cls(trace, lambda at_s: STRESS if max(trace.pressure(_place(trace, at_s)).values()) >= BUSY else CALM)


def _paced(trace: LoadTrace, requests_per_s: float) -> LoadTrace:
    """The same load, with requests at a constant rate; at least one."""
    count = max(1, round(trace.duration_s * requests_per_s))
    return trace.model_copy(update={"arrivals_s": tuple((np.arange(count) / requests_per_s).tolist())})


def _place(trace: LoadTrace, at_s: float) -> int:
    """The index of the trace's entry at a time."""
    return int(trace.at(np.array([at_s]))[0])
