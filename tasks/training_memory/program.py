"""A training step as a list of instructions, with the bytes and seconds that they will take.

The instructions of a span follow from its recipe alone. What runs them is `tasks.training_memory.execution`.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property

from tasks.training_memory.codings import CHUNK, gate_bytes, group_bytes
from tasks.training_memory.costs import StepCosts
from tasks.training_memory.ledger import Ledger
from tasks.training_memory.network import Network, StepNode
from tasks.training_memory.operators import (
    SMALLEST_IN_PLACE_BYTES,
    RuleNeeds,
    batch_norm_parts,
    copies_gradient,
    rule_of,
    shares_gradient,
)
from tasks.training_memory.recipes import LOSSY, SMALLEST_CODED_BYTES, Coding, Recipe, Span

CODED_CHUNKS = 1.25
"""Transient chunks of float32 while a tensor is put into groups, or taken out of them."""


INSTRUCTION_S = 4e-5
"""Seconds of Python for an instruction, beyond those of its operator."""
DISK_CALL_S = 3e-4
"""Seconds to hand a tensor to the thread that writes and reads, and to wait for it."""


class Do(Enum):
    """What an instruction does with the value of its node."""

    RUN = auto()
    AGAIN = auto()
    FREE = auto()
    ENCODE = auto()
    DECODE = auto()
    GATE = auto()
    WRITE = auto()
    FETCH = auto()
    READ = auto()
    BACKWARD = auto()


class Join(Enum):
    """How a gradient meets another one of the same value."""

    FIRST = auto()
    INTO_OLD = auto()
    INTO_NEW = auto()
    SUM = auto()


@dataclass(frozen=True, slots=True)
class StepInstruction:
    """coding: of ENCODE. joins: of BACKWARD, for each input; None where it wants no gradient.

    in_place: the value overwrites that of its first input; of BACKWARD, the first input's gradient overwrites the
    output's.
    """

    do: Do
    node: int
    coding: Coding = Coding.EXACT
    joins: tuple[Join | None, ...] = ()
    in_place: bool = False


@dataclass(frozen=True)
class SpanProgram:
    """The instructions of a span.

    Peaks have what the span itself has: what enters and leaves it, what it keeps, and gradients [bytes].
    held: bytes that are kept from the end of its forward pass to its backward pass. weights: bytes of weight
    gradients that stay after it.
    """

    forward: tuple[StepInstruction, ...]
    backward: tuple[StepInstruction, ...]
    forward_peak: int
    backward_peak: int
    held: int
    weights: int
    seconds: float


@dataclass(frozen=True)
class StepFacts:
    """What instructions follow from.

    early: gradients of weights do not stay. update_spike: transient bytes of an update, for each byte of a weight.
    """

    network: Network
    costs: StepCosts
    early: bool = False
    update_spike: float = 0.0

    @cached_property
    def needs(self) -> dict[int, RuleNeeds]:
        """Of operators on the way of gradients."""
        reaching = {self.network.output}
        for node in reversed(self.network.nodes):
            if node.index in reaching:
                reaching.update(node.inputs)
        return {
            node.index: rule_of(node).needs(node)
            for node in self.network.operators
            if node.gradient and node.index in reaching
        }

    @cached_property
    def weight_uses(self) -> dict[int, int]:
        """For each trained weight, how many operators give a gradient to it."""
        found: dict[int, int] = {}
        for index in self.needs:
            for read, want in zip(self.network.nodes[index].inputs, self.network.nodes[index].wants, strict=True):
                if want and self.network.nodes[read].kind == "parameter":
                    found[read] = found.get(read, 0) + 1
        return found


@dataclass
class SpanWriter:
    """Writes the instructions of one span by a recipe."""

    facts: StepFacts
    span: Span
    recipe: Recipe
    written: list[StepInstruction] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        self.nodes = self.facts.network.nodes
        self.inside = [node for node in self.nodes[self.span.start : self.span.stop] if node.kind == "operator"]
        self.indices = {node.index for node in self.inside}
        self.backward_nodes = [node for node in reversed(self.inside) if node.index in self.facts.needs]
        self.style = self.recipe.style
        self.gates = self._gates()
        self.needed = self._needed()
        self.again = self._computed_again() if self.style.fuse else {}
        self.kept = {base for base in self.needed if base not in self.again}
        self.pinned = {node.base for node in self.inside if not node.pure and node.base in self.indices}
        self._gradients: dict[int, list[object]] = {}
        self._weights = 0
        self._fresh = 0

    # What the backward pass needs -------------------------------------------------------------------------------------

    def local(self, read: int) -> int | None:
        """The storage behind a value, where it is one of this span's; None for weights, buffers and inputs."""
        base = self.nodes[read].base
        return base if base in self.indices or base == self.span.entry else None

    def _gates(self) -> set[int]:
        """Values whose gates are kept in bits: all with gates in the style, and the one that leaves."""
        found = {node.index for node in self.inside if self.facts.needs.get(node.index, RuleNeeds()).gate}
        leaving = {self.span.leaving}
        return {index for index in found if not self.nodes[index].view and (self.style.gates or index in leaving)}

    def demanded(self, node: StepNode) -> set[int]:
        """Storages that the backward pass of one operator reads."""
        needs = self.facts.needs[node.index]
        found = {self.local(node.inputs[place]) for place in needs.inputs}
        if needs.gate and node.index not in self.gates:
            found.add(self.local(node.index))
        return {base for base in found if base is not None}

    def _needed(self) -> set[int]:
        found: set[int] = set()
        for node in self.backward_nodes:
            found |= self.demanded(node)
        return found

    def _computed_again(self) -> dict[int, list[int]]:
        """Needed values that cheap operators give from other needed values, each with these operators in order."""
        found: dict[int, list[int]] = {}
        ways: dict[int, list[int] | None] = {}
        for node in self.inside:
            if node.view:
                continue
            way = self._way(node, ways)
            if node.index in self.needed and node.index != self.span.leaving and way is not None:
                found[node.index] = way
                ways[node.index] = []  # what is computed again serves its readers
            else:
                ways[node.index] = [] if node.index in self.needed else way
        return found

    def _way(self, node: StepNode, ways: dict[int, list[int] | None]) -> list[int] | None:
        if not rule_of(node).cheap or not node.pure:
            return None
        steps: list[int] = []
        for base in {self.local(read) for read in node.inputs} - {None}:
            if base == self.span.entry:
                if base not in self.needed:
                    return None
                continue
            before = ways.get(base) if base is not None else None
            if before is None:
                return None
            steps += [step for step in before if step not in steps]
        return [*sorted(steps), node.index]

    # Writing ----------------------------------------------------------------------------------------------------------

    def _write(self, do: Do, node: int, coding: Coding = Coding.EXACT) -> None:
        self.written.append(StepInstruction(do, node, coding))

    def coding_of(self, base: int, coding: Coding) -> Coding:
        """Small values, and others than float32, are kept as they are."""
        node = self.nodes[base]
        small = node.bytes < SMALLEST_CODED_BYTES or not node.floating or base in self.pinned
        return Coding.EXACT if small else coding

    def _compute(self, node: StepNode, do: Do, in_place: bool = False) -> None:
        cost = self.facts.costs.nodes[node.index]
        self.written.append(StepInstruction(do, node.index, in_place=in_place))
        if in_place:
            self.ledger.free(("value", node.inputs[0]))
        if do is Do.RUN:
            self.ledger.take(("aside", node.index), cost.aside)
        if not node.view:
            self.ledger.take(("value", node.index), node.bytes)
        self.ledger.work(cost.forward_s, cost.forward_spike)

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
        for node in nodes:
            first = node.inputs[0] if node.inputs else -1
            dead = last.get(first) == node.index and first not in kept | staying
            self._compute(node, do, dead and self._may_overwrite(node))
            if node.index in kept and not node.view:
                self._begin_waiting(node.index, self.coding_of(node.index, coding))
            if node.index in self.gates and do is self.gate_pass(node.index):
                self._gate(node.index)
            for base in [base for base, reader in last.items() if reader == node.index and base not in staying]:
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
            self._compute_again()
        coding = Coding.EXACT if self.recipe.again else self.style.coding
        first, last = self._uses()
        on_disk = [
            base
            for node in self.backward_nodes
            for base in sorted(first)
            if first[base] == node.index and base in self.kept and self.coding_of(base, coding) is Coding.DISK
        ]
        if on_disk:
            self._fetch(on_disk[0])
        for node in self.backward_nodes:
            for base in sorted(base for base, index in first.items() if index == node.index):
                if base in self.again:
                    self._chain(base)
                else:
                    self._get_back(base, self.coding_of(base, coding))
                    if base in on_disk[:-1]:
                        self._fetch(on_disk[on_disk.index(base) + 1])
            self._backward(node)
            for base in sorted(base for base, index in last.items() if index == node.index):
                self._free(base)
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
        asked = {index for index in wanted if index in self.indices}
        nodes: list[StepNode] = []
        for node in reversed(self.inside):
            if node.index in asked and node.base not in self.pinned:
                nodes.append(node)
                for read in node.inputs:
                    asked |= {read, self.nodes[read].base}
        self._compute_all(Do.AGAIN, nodes[::-1], self.kept, Coding.EXACT, self.kept | self.pinned)
        if entry is not None and entry not in self.kept and self.ledger.lives(("value", entry)):
            self._free(entry)

    # Gradients --------------------------------------------------------------------------------------------------------

    def _new_gradient(self, size: int) -> object:
        self._fresh += 1
        key = ("gradient", self._fresh)
        self.ledger.take(key, size)
        return key

    def _backward(self, node: StepNode) -> None:
        own = self._gradients.pop(node.index, None)
        in_place = self._gradient_in_place(node, own)
        joins: list[Join | None] = []
        freed: list[object] = []
        for place, (read, want) in enumerate(zip(node.inputs, node.wants, strict=True)):
            if not want:
                joins.append(None)
            elif self.nodes[read].kind == "parameter":
                joins.append(Join.SUM)
                freed += self._weight_gradient(read)
            else:
                joins.append(self._join(node, read, own, in_place and place == 0))
        self._work_backward(node, in_place)
        self.written.append(StepInstruction(Do.BACKWARD, node.index, joins=tuple(joins), in_place=in_place))
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

    def _work_backward(self, node: StepNode, in_place: bool) -> None:
        cost = self.facts.costs.nodes[node.index]
        spike = cost.backward_spike
        if copies_gradient(node, self.facts.network.readers[node.index]):
            spike = node.value_bytes
        if in_place and node.operator == "batch_norm":
            spike = 3 * node.value_bytes // len(batch_norm_parts(node.shape[1]))
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
        self._weights += 0 if again else size
        return []


def coding_spike(size: int) -> int:
    """Transient bytes while a tensor of `size` bytes is coded."""
    return int(CODED_CHUNKS * min(4 * CHUNK, size))


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
    return SpanProgram(forward, backward, forward_peak, writer.ledger.peak, held, writer._weights, seconds)


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
