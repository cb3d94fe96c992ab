"""The instructions of a span, forward and backward, by its recipe, with the gradients inside the span.

Each gradient is a tensor with a place in which it waits.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators import (
    SMALLEST_IN_PLACE_BYTES,
    batch_norm_parts,
    copies_gradient,
    rule_of,
    shares_gradient,
)
from tasks.training.memory.program.instructions import (
    DISK_CALL_S,
    Do,
    Join,
    SpanProgram,
    StepFacts,
    StepInstruction,
    ValueWriter,
    by_value,
)
from tasks.training.memory.recipes import Coding, Recipe, Span


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


INSTRUCTION_S = 4e-5
"""Seconds of Python for an instruction, beyond those of its operator."""


class SpanWriter(GradientWriter):
    """Writes the instructions of one span by a recipe."""

    def forward(self) -> None:
        """The forward pass, from what enters the span to what leaves it."""
        if self.span.entry is not None:
            self.ledger.take(("value", self.span.entry), self.nodes[self.span.entry].bytes)
        kept, coding = (self.kept, self.style.coding)
        if self.recipe.again:
            kept, coding = {self.span.entry} - {None}, self.recipe.entry  # type: ignore[assignment]
        self._compute_all(Do.RUN, self.inside, kept, coding, self.pinned | {self.span.leaving})

    def backward(self) -> None:
        """The backward pass, from the gradient of what leaves to the gradient of what enters."""
        leaving = self.span.leaving
        output = self.facts.network.output
        value = output if self.nodes[output].base == leaving else leaving
        self._gradients[value] = [self._new_gradient(self.nodes[value].value_bytes)]
        if self.recipe.again:
            if self.style.late:
                self._park(value)
            self._compute_again()
        coding = self.style.coding
        first, last = self._uses()
        begun, ended = by_value(first), by_value(last)
        on_disk = [
            base
            for node in self.backward_nodes
            for base in sorted(begun.get(node.index, ()))
            if base in self.kept and self.coding_of(base, coding) is Coding.DISK
        ]
        ahead = not self.style.late
        if on_disk and ahead:
            self._fetch(on_disk[0])
        for place, node in enumerate(self.backward_nodes):
            for index in sorted(self.parked & self._touched(node)):
                self._unpark(index)
            for base in sorted(begun.get(node.index, ())):
                if base in self.again:
                    self._chain(base)
                    continue
                if base in on_disk and not ahead:
                    self._fetch(base)
                self._get_back(base, self.coding_of(base, coding))
                if base in on_disk[:-1] and ahead:
                    self._fetch(on_disk[on_disk.index(base) + 1])
            self._backward(node, last)
            for base in sorted(ended.get(node.index, ())):
                self._free(base)
            if self.style.late:
                self._park_all(place)
        for base in sorted(self.pinned - set(first)):
            self._free(base)

    def _uses(self) -> tuple[dict[int, int], dict[int, int]]:
        """For each needed storage, the operator whose backward pass is the first to ask for it, and the last."""
        uses: dict[int, set[int]] = {}
        for node in self.backward_nodes:
            for base in self.demanded(node):
                uses.setdefault(base, set()).add(node.index)
        for base in sorted(self.again, reverse=True):
            at = max(uses[base])
            for step in self.again[base]:
                for read in self.nodes[step].inputs:
                    source = self.local(read)
                    if source is not None and source not in self.again[base]:
                        uses.setdefault(source, set()).add(at)
        return {b: max(u) for b, u in uses.items()}, {b: min(u) for b, u in uses.items()}

    def _chain(self, base: int) -> None:
        """A value by the cheap operators that lead to it."""
        steps = self.again[base]
        last = {self.local(read): step for step in steps for read in self.nodes[step].inputs}
        for step in steps:
            node = self.nodes[step]
            dead = {m for m in steps[:-1] if last.get(m) == step}
            in_place = node.inputs[0] in dead and self._may_overwrite(node)
            self._compute(node, Do.AGAIN, in_place)
            for middle in sorted(dead - ({node.inputs[0]} if in_place else set())):
                self._free(middle)

    def _compute_again(self) -> None:
        entry = self.span.entry
        if entry is not None:
            coding = self.coding_of(entry, self.recipe.entry)
            if coding is Coding.DISK:
                self._fetch(entry)
            self._get_back(entry, coding)
        wanted = self.kept | {index for index in self.gates if self.gate_pass(index) is Do.AGAIN}
        wanted |= {node.index for node in self.backward_nodes if rule_of(node).aside_again}
        asked = {index for index in wanted if index in self.indices}
        nodes: list[StepNode] = []
        for node in reversed(self.inside):
            if node.index in asked and node.base not in self.pinned:
                nodes.append(node)
                for read in node.inputs:
                    asked |= {read, self.nodes[read].base}
        coding = self.style.coding
        if nodes:  # the last value is the first that the backward pass asks for
            self.resident = {nodes[0].base} & self.kept
        entry_stays = {base for base in self.kept if base == entry and coding is not Coding.EXACT}
        self._compute_all(
            Do.AGAIN, nodes[::-1], self.kept - entry_stays, coding, self.pinned | entry_stays | self.resident
        )
        if entry is not None and entry not in self.kept and self.ledger.lives(("value", entry)):
            self._free(entry)


def write(facts: StepFacts, span: Span, recipe: Recipe) -> SpanProgram:
    """The program of a span."""
    writer = SpanWriter(facts, span, recipe)
    writer.forward()
    forward, forward_peak = tuple(writer.written), writer.ledger.peak
    if writer.ledger.lives(("value", span.leaving)):
        writer.ledger.free(("value", span.leaving))
    held = writer.ledger.bytes
    writer.ledger.peak = writer.ledger.bytes
    writer.backward()
    backward = tuple(writer.written[len(forward) :])
    seconds = writer.ledger.seconds + INSTRUCTION_S * len(writer.written)
    return SpanProgram(forward, backward, forward_peak, writer.ledger.peak, held, writer.weights, seconds)


def total(programs: Iterable[SpanProgram]) -> tuple[int, float]:
    """Peak of bytes beyond what is always there, and seconds, of spans one behind the other."""
    programs = list(programs)
    held = peak = 0
    weights = sum(program.weights for program in programs)
    for program in programs:
        weights -= program.weights
        peak = max(peak, held + program.forward_peak, held + program.backward_peak + weights)
        held += program.held
    return peak, sum(program.seconds for program in programs)
