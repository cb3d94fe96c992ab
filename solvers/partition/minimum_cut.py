"""The exact plan for two devices and any graph of steps, by a minimum cut.

Steps on the source's side of the cut stay on the coordinator. A step's arcs to both sides carry its compute times. A value has
a separate node for each direction, so that it is sent once, however many steps read it. With `one_way` nothing but the
network's output is sent back: reverse arcs are infinite, as in DADS. The latency of messages does not depend on the position of
the cut, since the steps of a one-way plan run in two segments. Source: Hu et al., DADS (INFOCOM 2019).
"""

from collections.abc import Iterable, Sequence
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from solvers.partition.conditions import PartitionConditions
from solvers.partition.dataflow import INPUT, Dataflow
from solvers.partition.plan import PartitionPlan, PlacedSteps, plan_of, stays
from solvers.partition.problem import PartitionProblem

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
    at_home = _source_side(problem.dataflow.steps + 2 + 2 * len(problem.dataflow.values), arcs)
    placement = [problem.home if at_home[2 + step] else remote for step in range(problem.dataflow.steps)]
    return plan_of(problem, conditions, together(problem.dataflow, placement, problem.home))


def together(dataflow: Dataflow, placement: Sequence[int], home: int) -> tuple[PlacedSteps, ...]:
    """The segments of a placement with few changes of device: each device runs all ready steps before it hands over."""
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(dataflow.steps), ()))
    for value in dataflow.values:
        for reader in value.readers:
            if value.writer != INPUT and reader < dataflow.steps:
                sorter.add(reader, value.writer)
    sorter.prepare()
    ready, found, now = set(sorter.get_ready()), list[PlacedSteps](), home
    while ready:
        own: list[int] = []
        while mine := sorted(step for step in ready if placement[step] == now):
            ready.difference_update(mine)
            own += mine
            sorter.done(*mine)
            ready.update(sorter.get_ready())
        if own:
            found.append(PlacedSteps(device=now, steps=tuple(own)))
        if ready:
            now = placement[min(ready)]
    return tuple(found) if found else stays(placement)


def _arcs(problem: PartitionProblem, conditions: PartitionConditions, remote: int, *, one_way: bool) -> Iterable[Arc]:
    """Nodes: 0 the source, 1 the sink, then steps, then two of each value."""
    home, dataflow, unit_ms = problem.home, problem.dataflow, conditions.ms_per_byte
    times_ms = np.where(problem.allowed, problem.compute_ms * conditions.slow_down, np.inf)
    for step in range(dataflow.steps):
        yield 2 + step, 1, times_ms[step, home]
        yield 0, 2 + step, times_ms[step, remote]
    for at, value in enumerate(dataflow.values):
        there, back = (2 + dataflow.steps + 2 * at + direction for direction in (0, 1))
        writer = 0 if value.writer == INPUT else 2 + value.writer
        inner = [2 + reader for reader in value.readers if reader < dataflow.steps]
        yield writer, there, _sent(value.bytes, unit_ms[home, remote])
        for reader in inner:
            yield there, reader, np.inf
            if one_way:
                yield reader, writer, np.inf
        reads_back = [] if one_way else inner
        if problem.returns and dataflow.steps in value.readers:
            reads_back = [*reads_back, 0]
        if reads_back and writer:
            yield back, writer, _sent(value.bytes, unit_ms[remote, home])
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
    tail, head, whole = _added_up(tail[whole > 0], head[whole > 0], whole[whole > 0], nodes)
    graph = csr_array((whole, (tail, head)), shape=(nodes, nodes), dtype=np.int32)
    flow = maximum_flow(graph, 0, 1).flow
    residual = graph - flow
    residual.eliminate_zeros()
    reaching = breadth_first_order(residual.T.tocsr(), 1, return_predecessors=False)  # nodes with a path to the sink
    found = np.ones(nodes, bool)
    found[reaching] = False
    return found


def _added_up(
    tail: NDArray[np.int64], head: NDArray[np.int64], capacity: NDArray[np.int64], nodes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Arcs with parallel ones merged; the capacity of infinite arcs is limited to `INFINITE`."""
    pairs, number = np.unique(tail.astype(np.int64) * nodes + head, return_inverse=True)
    found = np.zeros(len(pairs), np.int64)
    np.add.at(found, number, capacity)
    return pairs // nodes, pairs % nodes, np.minimum(found, INFINITE)
