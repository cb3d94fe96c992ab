"""What the backward pass of a span needs, and which of that is computed again."""

from dataclasses import dataclass

from tasks.training.memory.network import StepNode
from tasks.training.memory.operators import RuleNeeds, rule_of
from tasks.training.memory.program.instructions import StepFacts
from tasks.training.memory.recipes import Recipe, Span


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
