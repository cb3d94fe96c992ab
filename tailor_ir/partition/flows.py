"""Operators that can run side by side: a SubNet as flows (chains of operators), some of which do not wait for others.

Source: CrowdHMTware §III-B1, operation flows.
"""

from dataclasses import dataclass

from tailor_ir.partition.dataflow import INPUT, SubnetDataflow


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
    before: list[set[int]] = [set() for _ in range(count)]
    behind: list[set[int]] = [set() for _ in range(count + 1)]
    for value in dataflow.values:
        for reader in value.readers:
            if value.writer != INPUT:
                behind[value.writer].add(reader)
                if reader < count:
                    before[reader].add(value.writer)
    flow_of: list[int] = []
    members: list[list[int]] = []
    for at in range(count):
        single = next(iter(before[at])) if len(before[at]) == 1 else None
        if single is not None and behind[single] == {at}:
            flow_of.append(flow_of[single])
            members[flow_of[at]].append(at)
        else:
            flow_of.append(len(members))
            members.append([at])
    waits = _waits(before)
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


def _waits(before: list[set[int]]) -> list[int]:
    """For each operator, the operators that run before it in every order, as bits."""
    found: list[int] = []
    for earlier in before:
        bits = 0
        for one in earlier:
            bits |= found[one] | 1 << one
        found.append(bits)
    return found
