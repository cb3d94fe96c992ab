"""The instructions of a span, forward and backward, by its recipe."""

from collections.abc import Iterable

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators import rule_of
from tasks.training.memory.program.gradients import GradientWriter
from tasks.training.memory.program.instructions import Do, SpanProgram, StepFacts
from tasks.training.memory.program.values import by_value
from tasks.training.memory.recipes import Coding, Recipe, Span

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
