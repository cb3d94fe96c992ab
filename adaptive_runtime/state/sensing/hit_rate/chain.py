"""The first source that gives a number: counters, then the probe, then a model learned from these."""

import logging
from collections.abc import Sequence
from typing import Protocol

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.state.sensing.hit_rate.counters import CacheCounters
from adaptive_runtime.state.sensing.hit_rate.learned import LearnedHitRate
from adaptive_runtime.state.sensing.hit_rate.probe import CacheProbe
from adaptive_runtime.state.sensing.state import HitRateSource, SensedState
from profiling_agents.messages import AgentError
from profiling_agents.sensing.machine import available_cores

logger = logging.getLogger("adaptive_runtime.state.sensing")


class HitRateStep(Protocol):
    """A source that measures. read: the hit rate now; None if it has none."""

    @property
    def name(self) -> HitRateSource: ...

    def read(self) -> float | None: ...


class HitRate:
    """Asks sources in order, and teaches `learned` with their measurements. A failing source is not asked again."""

    def __init__(self, steps: Sequence[HitRateStep], learned: LearnedHitRate | None = None) -> None:
        self._steps = list(steps)
        self.learned = learned or LearnedHitRate()

    @classmethod
    def of_device(cls, probe: CacheProbe | None = None, learned: LearnedHitRate | None = None) -> "HitRate":
        """The chain of this device. probe: used if there are no counters."""
        counters = CacheCounters.find(available_cores())
        return cls([step for step in (counters, probe) if step is not None], learned)

    @classmethod
    def calibrated(cls) -> "HitRate":
        """The chain of this device; without counters, with a probe that is calibrated now, on the quiet device.

        If calibration fails, the log gives the reason, and the rate stays unknown.
        """
        chain = cls.of_device()
        if chain._steps:
            return chain
        try:
            return cls([CacheProbe.calibrated()])
        except (AdaptiveError, AgentError) as error:
            logger.warning("hit rate: no counters, and %s; it stays unknown", error)
            return chain

    def estimate(self, state: SensedState) -> tuple[float, HitRateSource] | tuple[None, None]:
        """The hit rate and its source; None if no source has a value."""
        for step in list(self._steps):
            try:
                rate = step.read()
            except OSError as error:
                logger.warning("hit rate by %s: %s; no longer asked", step.name, error)
                self._steps.remove(step)
                continue
            if rate is not None:
                self.learned.teach(state, rate)
                return rate, step.name
        rate = self.learned.estimate(state)
        return (None, None) if rate is None else (rate, self.learned.name)
