"""Values of a span: computed, put aside, brought back and freed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.training.memory.codings import CHUNK, gate_bytes, group_bytes
from tasks.training.memory.ledger import Ledger
from tasks.training.memory.network import StepNode
from tasks.training.memory.operators import rule_of
from tasks.training.memory.program.instructions import Do, StepInstruction
from tasks.training.memory.program.needs import SpanNeeds
from tasks.training.memory.recipes import LOSSY, SMALLEST_CODED_BYTES, Coding

CODED_CHUNKS = 1.25
"""Transient chunks of float32 while a tensor is put into groups, or taken out of them."""
DISK_CALL_S = 3e-4
"""Seconds to hand a tensor to the thread that writes and reads, and to wait for it."""


@dataclass
class ValueWriter(SpanNeeds):
    """Writes instructions for values. resident: storages that stay in memory whatever the coding is."""

    written: list[StepInstruction] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    resident: set[int] = field(default_factory=set)

    def _write(self, do: Do, node: int, coding: Coding = Coding.EXACT) -> None:
        self.written.append(StepInstruction(do, node, coding))

    def coding_of(self, base: int, coding: Coding) -> Coding:
        """Small values, and others than float32, are kept as they are."""
        node = self.nodes[base]
        small = node.bytes < SMALLEST_CODED_BYTES or not node.floating or base in self.pinned | self.resident
        return Coding.EXACT if small else coding

    def _compute(self, node: StepNode, do: Do, in_place: bool = False) -> None:
        cost = self.facts.costs.nodes[node.index]
        if rule_of(node).aside_again and self.recipe.again:  # kept aside in the second run, not in the first
            do = Do.AGAIN if do is Do.RUN else Do.RUN
        self.written.append(StepInstruction(do, node.index, in_place=in_place))
        if in_place:
            self.ledger.free(("value", node.inputs[0]))
        if do is Do.RUN:
            self.ledger.take(("aside", node.index), cost.aside)
        if not node.view:
            self.ledger.take(("value", node.index), node.bytes)
        unkept = cost.aside if do is Do.AGAIN and rule_of(node).aside_again else 0
        self.ledger.work(cost.forward_s, cost.forward_spike + unkept)

    def _free(self, base: int) -> None:
        self._write(Do.FREE, base)
        if self.ledger.lives(("value", base)):
            self.ledger.free(("value", base))

    def _gate(self, index: int) -> None:
        size = self.nodes[index].bytes
        gate = self.facts.needs[index].gate
        masks = 1 if gate is None or gate[1] == math.inf else 2
        self._write(Do.GATE, index)
        self.ledger.take(("gate", index), gate_bytes(size // 4))
        self.ledger.work(self.facts.costs.rates.gate * size, masks * min(CHUNK, size // 4))

    def _begin_waiting(self, base: int, coding: Coding) -> None:
        """At the birth of a value: what goes to the disk begins to."""
        if coding is Coding.DISK:
            self._write(Do.WRITE, base)
            self.ledger.work(DISK_CALL_S)
            self.ledger.disk(("value", base), self.facts.costs.rates.encode[coding] * self.nodes[base].bytes)

    def _put_aside(self, base: int, coding: Coding) -> None:
        """After the last reader of a value in the forward pass."""
        if coding is Coding.EXACT:
            return
        size = self.nodes[base].bytes
        if coding in LOSSY:
            self._write(Do.ENCODE, base, coding)
            self.ledger.take(("held", base), group_bytes(size // 4, LOSSY[coding]))
            self.ledger.work(self.facts.costs.rates.encode[coding] * size, coding_spike(size))
        else:
            self.ledger.wait(("value", base))
        self._free(base)

    def _get_back(self, base: int, coding: Coding) -> None:
        """A value that waited lives again."""
        size = self.nodes[base].bytes
        if coding in LOSSY:
            self._write(Do.DECODE, base)
            self.ledger.take(("value", base), size)
            self.ledger.work(self.facts.costs.rates.decode[coding] * size, coding_spike(size))
            self.ledger.free(("held", base))
        elif coding is Coding.DISK:
            self._write(Do.READ, base)
            self.ledger.wait(("value", base))

    def _fetch(self, base: int) -> None:
        self._write(Do.FETCH, base)
        self.ledger.work(DISK_CALL_S)
        self.ledger.take(("value", base), self.nodes[base].bytes)
        self.ledger.disk(("value", base), self.facts.costs.rates.decode[Coding.DISK] * self.nodes[base].bytes)

    def _compute_all(self, do: Do, nodes: list[StepNode], kept: set[int], coding: Coding, staying: set[int]) -> None:
        """Operators in order. Each value is freed, or put aside, after its last reader, but for those that are `staying`."""
        last: dict[int, int] = {}
        for node in nodes:
            last[node.base] = node.index
            last.update((base, node.index) for read in node.inputs if (base := self.local(read)) is not None)
        entry = self.span.entry
        if entry is not None and entry in kept:
            self._begin_waiting(entry, self.coding_of(entry, coding))
        ended = by_value(last)
        for node in nodes:
            first = node.inputs[0] if node.inputs else -1
            dead = last.get(first) == node.index and first not in kept | staying
            self._compute(node, do, dead and self._may_overwrite(node))
            if node.index in kept and not node.view:
                self._begin_waiting(node.index, self.coding_of(node.index, coding))
            if node.index in self.gates and do is self.gate_pass(node.index):
                self._gate(node.index)
            for base in ended.get(node.index, ()):
                if base in staying:
                    continue
                if base in kept:
                    self._put_aside(base, self.coding_of(base, coding))
                elif self.ledger.lives(("value", base)):
                    self._free(base)

    def _may_overwrite(self, node: StepNode) -> bool:
        """Whether an operator can write its value where that of its first input is, which nobody reads afterwards."""
        source = self.nodes[node.inputs[0]]
        others = {self.nodes[read].base for read in node.inputs[1:]}
        alike = source.shape == node.shape and source.bytes == node.bytes and source.floating
        possible = rule_of(node).in_place is not None and node.pure and not source.view
        return self.style.fuse and possible and alike and source.index not in others

    def gate_pass(self, index: int) -> Do:
        """In which pass a value's gates are packed."""
        return Do.AGAIN if self.recipe.again and index != self.span.leaving else Do.RUN


def by_value(places: Mapping[int, int]) -> dict[int, list[int]]:
    """Keys by their value, in their order."""
    found: dict[int, list[int]] = {}
    for key, value in places.items():
        found.setdefault(value, []).append(key)
    return found


def coding_spike(size: int) -> int:
    """Transient bytes while a tensor of `size` bytes is coded."""
    return int(CODED_CHUNKS * min(4 * CHUNK, size))
