"""The exact plan for two devices by a minimum cut, the pipeline with the most throughput, and plans of other methods.

Steps on the source's side of the cut stay on the coordinator. A step's arcs to both sides carry its compute times. A
value has a separate node for each direction, so that it is sent once, however many steps read it. With `one_way`
nothing but the network's output is sent back: reverse arcs are infinite, as in DADS. The latency of messages does not
depend on the position of the cut, since the steps of a one-way plan run in two segments. Any graph of steps has such a
cut. Source: Hu et al., DADS (INFOCOM 2019).

In a pipeline over devices, many requests are in flight at once. A device has one stage, of consecutive steps; the
transfer across the cut between two stages is a stage of its own. The time between two answers is the time of the
slowest stage, be it compute or transfer, and the slowest stage takes the least time.

Plans of other methods are baselines, each with its cost by the model of `solvers.partition.problem`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from solvers.partition.problem import (
    INPUT,
    Dataflow,
    PartitionConditions,
    PartitionLimit,
    PartitionPlan,
    PartitionProblem,
    StepSegment,
    plan_of,
    segments_of,
)
from solvers.tables import Infeasible, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """Stages in the order of the pipeline. period_ms: time between two answers [ms]. bottleneck: name of the slowest stage."""

    stages: tuple[StepSegment, ...]
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
        self.best: dict[tuple[int, int], Values] = {}

    def fastest(self) -> PipelinePlan:
        devices = range(self.problem.devices)
        sets = sorted(range(1, 1 << self.problem.devices), key=int.bit_count)
        found, ends = np.inf, None
        for used in sets:
            for device in (one for one in devices if used >> one & 1):
                own = self.best[used, device] = self._behind(used, device)
                period_ms = max(float(own[self.steps]), self._coordinator_ms(device))
                if period_ms < found:
                    found, ends = period_ms, (used, device)
        if ends is None:
            raise Infeasible("no pipeline keeps the limits")
        stages = self._stages(*ends)
        return PipelinePlan(stages=stages, period_ms=found, bottleneck=self._bottleneck(stages, found))

    def _coordinator_ms(self, device: int) -> float:
        return float(self.sent_ms[device, self.problem.coordinator, self.steps]) if self.problem.returns else 0.0

    def _before(self, used: int, device: int) -> Values:
        """Least period (steps + 1,) of the stages before one on `device`, with the transfer to it, by the steps before it."""
        rest, coordinator = used & ~(1 << device), self.problem.coordinator
        if not rest:
            found = np.full(self.steps + 1, np.inf)
            found[0] = self.sent_ms[coordinator, device, 0]
            return found
        earlier = [one for one in range(self.problem.devices) if rest >> one & 1]
        return np.min([np.maximum(self.best[rest, one], self.sent_ms[one, device]) for one in earlier], axis=0)

    def _behind(self, used: int, device: int) -> Values:
        return np.maximum(self._before(used, device)[:, None], self.stage_ms[device]).min(axis=0)

    def _stages(self, used: int, device: int) -> tuple[StepSegment, ...]:
        """The stages that lead to the best period, from the last one to the first."""
        end, found = self.steps, list[StepSegment]()
        while True:
            column = np.maximum(self._before(used, device), self.stage_ms[device][:, end])
            start = int(column.argmin())
            found.append(StepSegment(device=device, steps=tuple(range(start, end))))
            used &= ~(1 << device)
            if not used:
                return tuple(found[::-1])
            earlier = [one for one in range(self.problem.devices) if used >> one & 1]
            device, end = (
                min(earlier, key=lambda one: max(self.best[used, one][start], self.sent_ms[one, device, start])),
                start,
            )

    def _bottleneck(self, stages: tuple[StepSegment, ...], period_ms: float) -> str:
        ends = [stage.steps[-1] + 1 for stage in stages]
        places = [self.problem.coordinator, *(stage.device for stage in stages)]
        times_ms = {
            f"device {stage.device}": self.stage_ms[stage.device][stage.steps[0], end]
            for stage, end in zip(stages, ends, strict=True)
        }
        for (a, b), cut in zip(pairwise(places), [0, *ends[:-1]], strict=True):
            times_ms[f"link {a} to {b}"] = self.sent_ms[a, b, cut]
        times_ms[f"link {places[-1]} to {self.problem.coordinator}"] = self._coordinator_ms(places[-1])
        return max(times_ms, key=lambda name: float(times_ms[name]))

    def _stage_ms(self, device: int, conditions: PartitionConditions) -> Values:
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


def _between(amounts: Values) -> Values:
    """Sums (n + 1, n + 1) of the amounts (n,) from one cut to another."""
    sums = np.concatenate([[0.0], np.cumsum(amounts)])
    return sums[None, :] - sums[:, None]


def _device_of(limit: PartitionLimit) -> int:
    (used,) = np.nonzero(limit.per_step.any(axis=0))
    assert len(used) <= 1, f"{limit.name}: a pipeline's limits are of one device each"
    assert not limit.per_byte.any(), f"{limit.name}: a pipeline's limits are not of bytes"
    return int(used[0]) if len(used) else -1


FINITE = 2**29
"""Sum of all finite capacities after scaling: `scipy.sparse.csgraph.maximum_flow` needs integers."""
INFINITE = 2**30

Arc = tuple[int, int, float]


def minimum_cut(
    problem: PartitionProblem, conditions: PartitionConditions, remote: int, *, one_way: bool = False
) -> PartitionPlan:
    """The plan for the coordinator and one remote device whose compute times and transfers of values are least.

    Latencies of messages and limits of the problem are ignored, `private` is kept; steps that can run on neither device make
    the times infinite. The steps of each device run together as far as their values allow. Exact up to 1e-8 of the sum of all
    times.
    """
    arcs = _arcs(problem, conditions, remote, one_way=one_way)
    on_coordinator = _source_side(problem.dataflow.steps + 2 + 2 * len(problem.dataflow.values), arcs)
    placement = [problem.coordinator if on_coordinator[2 + step] else remote for step in range(problem.dataflow.steps)]
    return plan_of(problem, conditions, together(problem.dataflow, placement, problem.coordinator))


def together(dataflow: Dataflow, placement: Sequence[int], coordinator: int) -> tuple[StepSegment, ...]:
    """The segments of a placement with few changes of device: each device runs all ready steps before it hands over."""
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(dataflow.steps), ()))
    for value in dataflow.values:
        for reader in value.readers:
            if value.writer != INPUT and reader < dataflow.steps:
                sorter.add(reader, value.writer)
    sorter.prepare()
    ready, found, now = set(sorter.get_ready()), list[StepSegment](), coordinator
    while ready:
        own: list[int] = []
        while mine := sorted(step for step in ready if placement[step] == now):
            ready.difference_update(mine)
            own += mine
            sorter.done(*mine)
            ready.update(sorter.get_ready())
        if own:
            found.append(StepSegment(device=now, steps=tuple(own)))
        if ready:
            now = placement[min(ready)]
    return tuple(found) if found else segments_of(placement)


def _arcs(problem: PartitionProblem, conditions: PartitionConditions, remote: int, *, one_way: bool) -> Iterable[Arc]:
    """Nodes: 0 the source, 1 the sink, then steps, then two of each value."""
    coordinator, dataflow, unit_ms = problem.coordinator, problem.dataflow, conditions.ms_per_byte
    times_ms = np.where(problem.allowed, problem.compute_ms * conditions.slow_down, np.inf)
    for step in range(dataflow.steps):
        yield 2 + step, 1, times_ms[step, coordinator]
        yield 0, 2 + step, times_ms[step, remote]
    for at, value in enumerate(dataflow.values):
        there, back = (2 + dataflow.steps + 2 * at + direction for direction in (0, 1))
        writer = 0 if value.writer == INPUT else 2 + value.writer
        inner = [2 + reader for reader in value.readers if reader < dataflow.steps]
        yield writer, there, _sent(value.bytes, unit_ms[coordinator, remote])
        for reader in inner:
            yield there, reader, np.inf
            if one_way:
                yield reader, writer, np.inf
        reads_back = [] if one_way else inner
        if problem.returns and dataflow.steps in value.readers:
            reads_back = [*reads_back, 0]
        if reads_back and writer:
            yield back, writer, _sent(value.bytes, unit_ms[remote, coordinator])
            for reader in reads_back:
                yield reader, back, np.inf


def _sent(bytes_: float, ms_per_byte: float) -> float:
    return 0.0 if not bytes_ else bytes_ * ms_per_byte


def _source_side(nodes: int, arcs: Iterable[Arc]) -> NDArray[np.bool_]:
    """Whether each node is on the source's side of the minimum cut; ties stay there, on the coordinator."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    tail, head, capacity = (np.asarray(each) for each in zip(*arcs, strict=True))
    finite = np.isfinite(capacity)
    scale = FINITE / max(float(capacity[finite].sum()), np.finfo(float).tiny)
    whole = np.full(len(capacity), INFINITE, np.int64)
    whole[finite] = np.rint(capacity[finite] * scale)
    graph = csr_array((whole, (tail, head)), shape=(nodes, nodes))  # adds up parallel arcs
    graph.data = np.minimum(graph.data, INFINITE).astype(np.int32)
    graph.eliminate_zeros()
    residual = graph - maximum_flow(graph, 0, 1).flow
    residual.eliminate_zeros()
    reaching = breadth_first_order(residual.T.tocsr(), 1, return_predecessors=False)  # nodes with a path to the sink
    found = np.ones(nodes, bool)
    found[reaching] = False
    return found


def all_on_coordinator(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The plan in which the coordinator runs all steps, so that nothing is sent."""
    return _cut(problem, conditions, problem.coordinator, problem.dataflow.steps)


def all_remote(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The plan in which the fastest other device runs all steps that need not stay on the coordinator."""
    first = min(_cuts(problem), default=problem.dataflow.steps)
    return _fastest((_cut(problem, conditions, remote, first) for remote in _remotes(problem)), conditions)


def neurosurgeon(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The best single cut: steps before it on the coordinator, the others on one device. Source: Kang et al. (ASPLOS 2017)."""
    found = (_cut(problem, conditions, remote, cut) for remote in _remotes(problem) for cut in _cuts(problem))
    return _fastest((all_on_coordinator(problem, conditions), *found), conditions)


def dads(problem: PartitionProblem, conditions: PartitionConditions) -> PartitionPlan:
    """The minimum one-way cut with the best other device. Source: Hu et al. (INFOCOM 2019)."""
    found = (minimum_cut(problem, conditions, remote, one_way=True) for remote in _remotes(problem))
    return _fastest((all_on_coordinator(problem, conditions), *found), conditions)


def neighbour_search(
    problem: PartitionProblem, conditions: PartitionConditions, start: int | None = None
) -> PartitionPlan:
    """A heuristic like CAS: move from the current cut to the better of its neighbours, while that improves the plan.

    start: the cut to begin with; None: in the middle. CAS (IMWUT 2021) adapts a partition to its context by a search among
    neighbouring partitions; it may end in a local optimum.
    """
    cuts = [*_cuts(problem), problem.dataflow.steps]
    found = []
    for remote in _remotes(problem):
        at = len(cuts) // 2 if start is None else min(range(len(cuts)), key=lambda one: abs(cuts[one] - start))
        while True:
            near = range(max(at - 1, 0), min(at + 2, len(cuts)))
            plans = {one: _cut(problem, conditions, remote, cuts[one]) for one in near}
            best = min(near, key=lambda one: (plans[one].latency_ms(conditions), one != at))
            if best == at:
                found.append(plans[at])
                break
            at = best
    return _fastest(found, conditions)


def _cut(problem: PartitionProblem, conditions: PartitionConditions, remote: int, cut: int) -> PartitionPlan:
    steps = problem.dataflow.steps
    return plan_of(problem, conditions, segments_of([problem.coordinator] * cut + [remote] * (steps - cut)))


def _cuts(problem: PartitionProblem) -> Iterator[int]:
    """The cuts after which all steps may leave the coordinator."""
    steps, others = problem.dataflow.steps, _remotes(problem)
    kept = [step for step in range(steps) if not problem.allowed[step, others].any()]
    yield from range(max(kept, default=-1) + 1, steps)


def _remotes(problem: PartitionProblem) -> list[int]:
    return [device for device in range(problem.devices) if device != problem.coordinator]


def _fastest(plans: Iterable[PartitionPlan], conditions: PartitionConditions) -> PartitionPlan:
    return min(plans, key=lambda plan: plan.latency_ms(conditions))
