"""Gradients inside a span: which tensor each is, and where it waits."""

from dataclasses import dataclass, field

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators import (
    SMALLEST_IN_PLACE_BYTES,
    batch_norm_parts,
    copies_gradient,
    rule_of,
    shares_gradient,
)
from tasks.training.memory.program.instructions import Do, Join, StepInstruction
from tasks.training.memory.program.values import DISK_CALL_S, ValueWriter
from tasks.training.memory.recipes import Coding


@dataclass
class GradientWriter(ValueWriter):
    """Writes backward instructions of operators. parked: values whose gradients are on disk."""

    parked: set[int] = field(default_factory=set)
    weights: int = 0
    _gradients: dict[int, list[object]] = field(default_factory=dict)
    _fresh: int = 0

    def _new_gradient(self, size: int) -> object:
        self._fresh += 1
        key = ("gradient", self._fresh)
        self.ledger.take(key, size)
        return key

    def _touched(self, node: StepNode) -> set[int]:
        """Values whose gradients the backward pass of an operator reads or changes."""
        return {node.index, *(read for read, want in zip(node.inputs, node.wants, strict=True) if want)}

    def _park_all(self, place: int) -> None:
        """Large gradients that the next operator does not touch wait on disk for a later one."""
        if place + 1 == len(self.backward_nodes):
            return
        soon, later = self._touched(self.backward_nodes[place + 1]), self.backward_nodes[place + 2 :]
        for index, keys in list(self._gradients.items()):
            large = self.nodes[index].value_bytes >= SMALLEST_IN_PLACE_BYTES and len(keys) == 1
            if not large or index in soon | self.parked or not self.ledger.alone(keys[0]):
                continue
            if any(index in self._touched(node) for node in later):
                self._park(index)

    def _park(self, index: int) -> None:
        if self.nodes[index].value_bytes < SMALLEST_IN_PLACE_BYTES:
            return
        self._write(Do.PARK, index)
        self._wait_for_disk(index, Coding.DISK, self.facts.costs.rates.encode)
        self.ledger.free(self._gradients[index][0])
        self.parked.add(index)

    def _unpark(self, index: int) -> None:
        self._write(Do.UNPARK, index)
        self._gradients[index] = [self._new_gradient(self.nodes[index].value_bytes)]
        self._wait_for_disk(index, Coding.DISK, self.facts.costs.rates.decode)
        self.parked.remove(index)

    def _wait_for_disk(self, index: int, coding: Coding, rates: dict[Coding, float]) -> None:
        self.ledger.work(DISK_CALL_S)
        self.ledger.disk(("parked", index), rates[coding] * self.nodes[index].value_bytes)
        self.ledger.wait(("parked", index))

    def _backward(self, node: StepNode, last: dict[int, int]) -> None:
        own = self._gradients.pop(node.index, None)
        in_place = self._gradient_in_place(node, own)
        into_input = not in_place and self._gradient_into_input(node, own, last)
        if into_input:
            self.ledger.free(("value", node.inputs[0]))
        joins: list[Join | None] = []
        freed: list[object] = []
        for place, (read, want) in enumerate(zip(node.inputs, node.wants, strict=True)):
            if not want:
                joins.append(None)
            elif self.nodes[read].kind == "parameter":
                joins.append(Join.SUM)
                freed += self._weight_gradient(read)
            else:
                onto = place == 0 and self._gradient_onto(node)
                joins.append(Join.ONTO if onto else self._join(node, read, own, in_place and place == 0))
        self._work_backward(node, in_place or into_input, Join.ONTO in joins)
        self.written.append(
            StepInstruction(Do.BACKWARD, node.index, joins=tuple(joins), in_place=in_place, into_input=into_input)
        )
        for key in [*(own or []), *freed]:
            self.ledger.free(key)
        for key in (("aside", node.index), ("gate", node.index)):
            if self.ledger.lives(key):
                self.ledger.free(key)

    def _gradient_in_place(self, node: StepNode, own: list[object] | None) -> bool:
        """Whether the first input's gradient overwrites the output's, which nobody else has."""
        source = self.nodes[node.inputs[0]]
        alone = own is not None and len(own) == 1 and self.ledger.alone(own[0])
        alike = source.kind == "operator" and source.value_bytes == node.value_bytes and not node.view
        large = node.operator != "batch_norm" or node.value_bytes >= SMALLEST_IN_PLACE_BYTES
        possible = rule_of(node).backward_in_place is not None and node.wants[0]
        return self.style.fuse and possible and alone and alike and large

    def _gradient_into_input(self, node: StepNode, own: list[object] | None, last: dict[int, int]) -> bool:
        """Whether the first input's gradient overwrites its value, which nobody reads afterwards."""
        source = self.nodes[node.inputs[0]]
        dead = last.get(source.index) == node.index and source.index not in self.pinned and not source.view
        alike = source.bytes == source.value_bytes == node.value_bytes and self.ledger.lives(("value", source.index))
        large = node.value_bytes >= SMALLEST_IN_PLACE_BYTES and node.wants[0]
        possible = self.style.fuse and rule_of(node).backward_into_input is not None and own is not None
        return possible and dead and alike and large

    def _gradient_onto(self, node: StepNode) -> bool:
        """Whether the first input's gradient is added sample by sample to one that is there, which nobody else has."""
        old = self._gradients.get(node.inputs[0])
        large = self.nodes[node.inputs[0]].value_bytes >= SMALLEST_IN_PLACE_BYTES
        alone = old is not None and len(old) == 1 and self.ledger.alone(old[0])
        return self.style.late and rule_of(node).backward_onto is not None and large and alone

    def _work_backward(self, node: StepNode, in_place: bool, onto: bool) -> None:
        cost = self.facts.costs.nodes[node.index]
        spike = cost.backward_spike
        if self.facts.needs[node.index].gate and node.index not in self.gates:
            spike = 0  # measured where gates are unpacked
        if copies_gradient(node, self.facts.network.readers[node.index]):
            spike = node.value_bytes
        if in_place and node.operator == "batch_norm":
            spike = 3 * node.value_bytes // len(batch_norm_parts(node.shape[1], node.value_bytes))
        if onto:
            samples = self.nodes[node.inputs[0]].shape[0]
            weights = sum(self.nodes[read].value_bytes for read in node.inputs[1:] if self.nodes[read].gradient)
            spike = self.nodes[node.inputs[0]].value_bytes // samples + weights
        self.ledger.work(cost.backward_s, spike)

    def _join(self, node: StepNode, read: int, own: list[object] | None, in_place: bool) -> Join:
        source = self.nodes[read]
        shared = (
            shares_gradient(node) and own and (node.view or source.shape == node.shape or node.operator == "getitem")
        )
        new: object
        if (shared or in_place) and own:
            new = own[0]
            self.ledger.take(new, 0)
        else:
            new = self._new_gradient(source.value_bytes)
        if node.operator == "getitem":
            self._gradients.setdefault(read, []).append(new)
            return Join.FIRST
        old = self._gradients.get(read)
        if old is None:
            self._gradients[read] = [new]
            return Join.FIRST
        if self.ledger.alone(old[0]):
            self.ledger.work(0.0)
            self.ledger.free(new)
            return Join.INTO_OLD
        if self.ledger.alone(new):
            self.ledger.free(old[0])
            self._gradients[read] = [new]
            return Join.INTO_NEW
        self._gradients[read] = [self._new_gradient(source.value_bytes)]
        self.ledger.free(old[0])
        self.ledger.free(new)
        return Join.SUM

    def _weight_gradient(self, weight: int) -> list[object]:
        """Takes the bytes of a weight's gradient; returns those that are freed by the update."""
        key = ("weight", weight)
        size = self.nodes[weight].value_bytes
        again = self.ledger.lives(key)
        self.ledger.take(key, size)
        if again:
            self.ledger.work(0.0, size)
            self.ledger.free(key)
        if self.facts.early and self.facts.weight_uses[weight] == 1:
            self.ledger.work(0.0, int(size * self.facts.update_spike))
            return [key]
        self.weights += 0 if again else size
        return []
