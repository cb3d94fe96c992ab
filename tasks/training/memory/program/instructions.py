"""Instructions of a training step, and the facts from which they follow: needs of spans, living tensors, and transfers.

The backward pass of a span has needs, some of which are computed again. Values of a span are computed, put aside,
brought back and freed. Bytes and seconds of a program are known before it runs, from the tensors that are alive and the
work of the disk.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property

from tasks.training.memory.network import Network, StepNode
from tasks.training.memory.operators import RuleNeeds, rule_of
from tasks.training.memory.recipes import LOSSY, SMALLEST_CODED_BYTES, Coding, Recipe, Span, StepCosts
from tasks.training.memory.storage import CHUNK, gate_bytes, group_bytes


class Ledger:
    """Adds up bytes by tensor lifetimes, and seconds with one disk that works beside the operators."""

    def __init__(self) -> None:
        self.bytes = 0
        self.peak = 0
        self.seconds = 0.0
        self._sizes: dict[Hashable, int] = {}
        self._references: Counter[Hashable] = Counter()
        self._disk_free_s = 0.0
        self._ready_s: dict[Hashable, float] = {}

    def take(self, key: Hashable, size: int) -> None:
        """A tensor begins to live."""
        if self._references[key] == 0:
            self._sizes[key] = size
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
        self._references[key] += 1

    def free(self, key: Hashable) -> None:
        """A reference to a tensor ends; with the last one, its life."""
        self._references[key] -= 1
        if self._references[key] == 0:
            self.bytes -= self._sizes.pop(key)

    def alone(self, key: Hashable) -> bool:
        """Whether a tensor has one reference."""
        return self._references[key] == 1

    def lives(self, key: Hashable) -> bool:
        return self._references[key] > 0

    def work(self, seconds: float, spike: int = 0) -> None:
        """Work that needs bytes for itself while it runs."""
        self.seconds += seconds
        self.peak = max(self.peak, self.bytes + spike)

    def disk(self, key: Hashable, seconds: float) -> None:
        """Work of the disk for a tensor begins when the disk is free."""
        self._disk_free_s = max(self._disk_free_s, self.seconds) + seconds
        self._ready_s[key] = self._disk_free_s

    def wait(self, key: Hashable) -> None:
        """Until the disk has done the work for a tensor."""
        self.seconds = max(self.seconds, self._ready_s.pop(key))


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
    PARK = auto()
    """Its gradient goes to the disk."""
    UNPARK = auto()
    BACKWARD = auto()


class Join(Enum):
    """How a gradient meets another one of the same value."""

    FIRST = auto()
    INTO_OLD = auto()
    INTO_NEW = auto()
    SUM = auto()
    ONTO = auto()
    """Sample by sample, so that it is never there as a whole."""


@dataclass(frozen=True, slots=True)
class StepInstruction:
    """coding: of ENCODE. joins: of BACKWARD, for each input; None where it wants no gradient.

    in_place: the value overwrites that of its first input; of BACKWARD, the first input's gradient overwrites the
    output's. into_input: of BACKWARD, the first input's gradient overwrites its value.
    """

    do: Do
    node: int
    coding: Coding = Coding.EXACT
    joins: tuple[Join | None, ...] = ()
    in_place: bool = False
    into_input: bool = False


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
class SpanNeeds:
    """Of one span by a recipe."""

    facts: StepFacts
    span: Span
    recipe: Recipe

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
