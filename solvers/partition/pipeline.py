"""The most throughput: a network as a pipeline over devices, arranged so that the slowest stage takes the least time.

Many requests are in flight at once. A device has one stage, of consecutive steps; the transfer across the cut between two
stages is a stage of its own. The time between two answers is that of the slowest stage, be it compute or transfer.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.errors import Infeasible
from solvers.partition.conditions import PartitionConditions
from solvers.partition.plan import PlacedSteps
from solvers.partition.problem import PartitionLimit, PartitionProblem

StageTimes = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """Stages in the order of the pipeline. period_ms: time between two answers [ms]. bottleneck: name of the slowest stage."""

    stages: tuple[PlacedSteps, ...]
    period_ms: float
    bottleneck: str


def fastest_pipeline(problem: PartitionProblem, conditions: PartitionConditions) -> PipelinePlan:
    """The pipeline with the least period, then the fewest devices, in devices² · 2^devices · steps² operations.

    Each limit may concern one device only, without bytes sent (memory). Infeasible: no pipeline is within the limits.
    """
    return _Pipelines(problem, conditions).fastest()


class _Pipelines:
    """Best periods by the set of devices (as bits), the last device, and the number of steps so far."""

    def __init__(self, problem: PartitionProblem, conditions: PartitionConditions) -> None:
        self.problem, self.steps = problem, problem.dataflow.steps
        crossing = problem.dataflow.crossing_bytes
        with np.errstate(invalid="ignore"):
            sent_ms = conditions.ms_per_byte[:, :, None] * crossing
        self.sent_ms = np.where(crossing > 0, sent_ms, 0.0)  # (D, D, steps + 1)
        self.stage_ms = [self._stage_ms(device, conditions) for device in range(problem.devices)]
        self.best: dict[tuple[int, int], StageTimes] = {}

    def fastest(self) -> PipelinePlan:
        devices = range(self.problem.devices)
        sets = sorted(range(1, 1 << self.problem.devices), key=int.bit_count)
        found, ends = np.inf, None
        for used in sets:
            for device in (one for one in devices if used >> one & 1):
                own = self.best[used, device] = self._behind(used, device)
                period_ms = max(float(own[self.steps]), self._home_ms(device))
                if period_ms < found:
                    found, ends = period_ms, (used, device)
        if ends is None:
            raise Infeasible("no pipeline keeps the limits")
        stages = self._stages(*ends)
        return PipelinePlan(stages=stages, period_ms=found, bottleneck=self._bottleneck(stages, found))

    def _home_ms(self, device: int) -> float:
        return float(self.sent_ms[device, self.problem.home, self.steps]) if self.problem.returns else 0.0

    def _before(self, used: int, device: int) -> StageTimes:
        """Least period (steps + 1,) of the stages before one on `device`, with the transfer to it, by the steps before it."""
        rest, home = used & ~(1 << device), self.problem.home
        if not rest:
            found = np.full(self.steps + 1, np.inf)
            found[0] = self.sent_ms[home, device, 0]
            return found
        earlier = [one for one in range(self.problem.devices) if rest >> one & 1]
        return np.min([np.maximum(self.best[rest, one], self.sent_ms[one, device]) for one in earlier], axis=0)

    def _behind(self, used: int, device: int) -> StageTimes:
        return np.maximum(self._before(used, device)[:, None], self.stage_ms[device]).min(axis=0)

    def _stages(self, used: int, device: int) -> tuple[PlacedSteps, ...]:
        """The stages that lead to the best period, from the last one to the first."""
        end, found = self.steps, list[PlacedSteps]()
        while True:
            column = np.maximum(self._before(used, device), self.stage_ms[device][:, end])
            start = int(column.argmin())
            found.append(PlacedSteps(device=device, steps=tuple(range(start, end))))
            used &= ~(1 << device)
            if not used:
                return tuple(found[::-1])
            earlier = [one for one in range(self.problem.devices) if used >> one & 1]
            device, end = (
                min(earlier, key=lambda one: max(self.best[used, one][start], self.sent_ms[one, device, start])),
                start,
            )

    def _bottleneck(self, stages: tuple[PlacedSteps, ...], period_ms: float) -> str:
        ends = [stage.steps[-1] + 1 for stage in stages]
        places = [self.problem.home, *(stage.device for stage in stages)]
        times_ms = {
            f"device {stage.device}": self.stage_ms[stage.device][stage.steps[0], end]
            for stage, end in zip(stages, ends, strict=True)
        }
        for (a, b), cut in zip(pairwise(places), [0, *ends[:-1]], strict=True):
            times_ms[f"link {a} to {b}"] = self.sent_ms[a, b, cut]
        times_ms[f"link {places[-1]} to {self.problem.home}"] = self._home_ms(places[-1])
        return max(times_ms, key=lambda name: float(times_ms[name]))

    def _stage_ms(self, device: int, conditions: PartitionConditions) -> StageTimes:
        """Times (steps + 1, steps + 1) of the steps from one cut to a later one on a device; inf if it may not run them."""
        times_ms = self.problem.compute_ms[:, device] * conditions.slow_down[device]
        allowed = self.problem.allowed[:, device]
        found = _between(np.where(allowed, times_ms, 0.0))
        forbidden = _between((~allowed).astype(float)) > 0
        for limit in self.problem.limits:
            if _device_of(limit) == device:
                forbidden |= _between(limit.per_step[:, device]) > limit.bound
        cuts = np.arange(self.steps + 1)
        return np.where(forbidden | (cuts[:, None] >= cuts), np.inf, found)


def _between(amounts: StageTimes) -> StageTimes:
    """Sums (n + 1, n + 1) of the amounts (n,) from one cut to another."""
    sums = np.concatenate([[0.0], np.cumsum(amounts)])
    return sums[None, :] - sums[:, None]


def _device_of(limit: PartitionLimit) -> int:
    (used,) = np.nonzero(limit.per_step.any(axis=0))
    assert len(used) <= 1, f"{limit.name}: a pipeline's limits are of one device each"
    assert not limit.per_byte.any(), f"{limit.name}: a pipeline's limits are not of bytes"
    return int(used[0]) if len(used) else -1
