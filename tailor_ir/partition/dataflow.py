"""One SubNet as operators and the values that they pass to each other: cuts, parallel flows, and parts of a split.

A SubNet of n operators has n + 1 cuts: cut k has the first k operators on its left side. A value crosses a cut if it is
written on the left (the network's input always is) and read on the right (the network's outputs are read after all
operators). A value with several readers crosses once.

Flows are chains of operators, some of which do not wait for others, so that operators can run side by side. Source:
CrowdHMTware §III-B1, operation flows. Parts are groups of operators, each of which only reads the results of earlier
groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from solvers.partition.problem import INPUT, SentValue
from tailor_ir.errors import SpaceError
from tailor_ir.operators.table import PlacedOperator
from tailor_ir.spaces.space import Structure, Subnet
from tailor_ir.subnets.segments import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedValue(SentValue):
    """A value of one SubNet, whose operators are the steps. name: in the graph and in exported files.

    shape: including the batch. bytes: of the value as the network computes it.
    """

    name: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubnetDataflow:
    """One SubNet in its running order. positions: its operators' positions in `PrePartition.operators`."""

    operators: tuple[PlacedOperator, ...]
    positions: tuple[int, ...]
    values: tuple[HandedValue, ...]

    @property
    def cuts(self) -> int:
        """Number of cuts, including those before the first and after the last operator."""
        return len(self.operators) + 1

    def crossing(self, cut: int) -> tuple[HandedValue, ...]:
        """The values that cross one cut."""
        return tuple(value for value in self.values if value.writer < cut <= value.readers[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFlow:
    """A chain of operators: each reads the one before it, and is its only reader.

    operators: positions in `SubnetDataflow.operators`. beside: numbers of the flows with which there is no dependency in either
    direction.
    """

    operators: tuple[int, ...]
    beside: tuple[int, ...]


def find_flows(dataflow: SubnetDataflow) -> tuple[OperatorFlow, ...]:
    """The flows of a SubNet, by their first operators; every operator is in one flow."""
    count = len(dataflow.operators)
    before: list[set[int]] = [set() for _ in range(count + 1)]
    behind: list[set[int]] = [set() for _ in range(count)]
    for value in dataflow.values:
        if value.writer != INPUT:
            behind[value.writer].update(value.readers)
            for reader in value.readers:
                before[reader].add(value.writer)
    flow_of: list[int] = []
    members: list[list[int]] = []
    waits: list[int] = []  # for each operator, those that run before it in every order, as bits
    for at in range(count):
        waits.append(0)
        for one in before[at]:
            waits[at] |= waits[one] | 1 << one
        single = next(iter(before[at])) if len(before[at]) == 1 else None
        if single is not None and behind[single] == {at}:
            flow_of.append(flow_of[single])
            members[flow_of[at]].append(at)
        else:
            flow_of.append(len(members))
            members.append([at])
    return tuple(
        OperatorFlow(
            operators=tuple(own),
            beside=tuple(
                number
                for number, other in enumerate(members)
                if other is not own and not (waits[own[0]] >> other[0] & 1 or waits[other[0]] >> own[0] & 1)
            ),
        )
        for own in members
    )


def split_parts(
    structure: Structure, codes: np.ndarray, dataflow: SubnetDataflow, groups: Sequence[Sequence[int]], batch: int
) -> tuple[Part, ...]:
    """The parts of one SubNet (V,), in the order in which they run.

    groups: positions in `dataflow.operators`; each operator is in one group. Inputs and outputs of a part are in the order of
    `dataflow.values`. SpaceError: an operator is in no group or in two, or a group reads what a later group writes.
    """
    count = len(dataflow.operators)
    if sorted(at for group in groups for at in group) != list(range(count)) or not all(groups):
        got = f"{sum(map(len, groups))} operators in {len(groups)} parts"
        raise SpaceError(f"parts: got {got}; each of the {count} operators is in one part, and no part is empty")
    part_of = {at: number for number, group in enumerate(groups) for at in group}
    part_of |= {INPUT: INPUT, count: len(groups)}  # the network's output comes after all parts
    whole = structure.subnet(codes, batch)
    data = structure.graph.data_values()
    of_weights = {node.name for node in whole.nodes if node.outputs[0] not in data}
    found = []
    for number, group in enumerate(groups):
        names = of_weights.union(*(dataflow.operators[at].names for at in group))
        read, written = [], []
        for value in dataflow.values:
            readers = {part_of[at] for at in value.readers}
            writer = part_of[value.writer]
            if min(readers) < writer:
                raise SpaceError(f"part {min(readers)}: it reads '{value.name}', which part {writer} writes behind it")
            if number in readers and writer != number:
                read.append(value.name)
            if writer == number and readers - {number}:
                written.append(value.name)
        nodes = tuple(node for node in whole.nodes if node.name in names)
        found.append(Part(subnet=Subnet(nodes, tuple(written), whole.sizes), inputs=tuple(read)))
    return tuple(found)
