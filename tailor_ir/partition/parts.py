"""The parts of a split SubNet: groups of operators, each of which only reads the results of earlier groups."""

from collections.abc import Sequence

import numpy as np

from tailor_ir.errors import SpaceError
from tailor_ir.partition.dataflow import INPUT, SubnetDataflow
from tailor_ir.spaces.structure import Structure, Subnet
from tailor_ir.subnets.segments import Part


def split_parts(
    structure: Structure, codes: np.ndarray, dataflow: SubnetDataflow, groups: Sequence[Sequence[int]], batch: int
) -> tuple[Part, ...]:
    """The parts of one SubNet (V,), in the order in which they run.

    groups: positions in `dataflow.operators`; each operator is in one group. Inputs and outputs of a part are in the order of
    `dataflow.values`. SpaceError: an operator is in no group or in two, or a group reads what a later group writes.
    """
    part_of = _part_of(len(dataflow.operators), groups)
    whole = structure.subnet(codes, batch)
    data = structure.graph.data_values()
    of_weights = {node.name for node in whole.nodes if node.outputs[0] not in data}
    found = []
    for number, group in enumerate(groups):
        names = of_weights.union(*(dataflow.operators[at].names for at in group))
        read, written = [], []
        for value in dataflow.values:
            readers = {part_of[at] for at in value.readers}
            writer = INPUT if value.writer == INPUT else part_of[value.writer]
            if min(readers) < writer:
                raise SpaceError(f"part {min(readers)}: it reads '{value.name}', which part {writer} writes behind it")
            if number in readers and writer != number:
                read.append(value.name)
            if writer == number and readers - {number}:
                written.append(value.name)
        nodes = tuple(node for node in whole.nodes if node.name in names)
        found.append(Part(subnet=Subnet(nodes, tuple(written), whole.sizes), inputs=tuple(read)))
    return tuple(found)


def _part_of(count: int, groups: Sequence[Sequence[int]]) -> dict[int, int]:
    """Operator -> its part; the network's output, at `count`, comes after all parts."""
    found = {at: number for number, group in enumerate(groups) for at in group}
    if sorted(at for group in groups for at in group) != list(range(count)) or not all(groups):
        got = f"{sum(map(len, groups))} operators in {len(groups)} parts"
        raise SpaceError(f"parts: got {got}; each of the {count} operators is in one part, and no part is empty")
    return found | {count: len(groups)}
