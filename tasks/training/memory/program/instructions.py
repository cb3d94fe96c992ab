"""Instructions of a step, and what they follow from."""

from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

from tasks.training.memory.costs import StepCosts
from tasks.training.memory.network import Network
from tasks.training.memory.operators import RuleNeeds, rule_of
from tasks.training.memory.recipes import Coding


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
