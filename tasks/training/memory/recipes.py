"""How activations get from the forward pass to the backward pass, for one span of a network.

A *span* is a run of operators that one tensor enters and one tensor leaves. Its *recipe* says what is kept for the
backward pass.
"""

from dataclasses import dataclass
from enum import Enum

from tasks.training.memory.codings import Bits
from tasks.training.memory.network import Network
from tasks.training.memory.operators import rule_of


class Mean(Enum):
    """A way to need less memory in a training step."""

    UPDATE = "update"
    """Each weight is updated as soon as its gradient is complete, and the gradient is freed."""
    FUSE = "fuse"
    """Neighbours keep one tensor: outputs of cheap operators are computed again from inputs that are kept anyway.

    Values and gradients that nobody else reads are overwritten.
    """
    RECOMPUTE = "recompute"
    """Spans are computed again in the backward pass from the tensor that enters them."""
    ENCODE = "encode"
    """Gates are kept as 1 bit, and other activations in groups of 8 or 4 bits."""
    SWAP = "swap"
    """Activations wait on disk, written and read while operators run; so does the state of an `OptimiserOnDisk`."""
    DIVIDE = "divide"
    """The batch is divided into micro-batches whose gradients are accumulated."""


class Coding(Enum):
    """How a tensor waits for the backward pass."""

    EXACT = "exact"
    EIGHT = "8 bits"
    FOUR = "4 bits"
    DISK = "disk"


LOSSY: dict[Coding, Bits] = {Coding.EIGHT: 8, Coding.FOUR: 4}
"""Codings that round, with their bits."""
SMALLEST_CODED_BYTES = 4096
"""Smaller tensors are kept as they are."""


@dataclass(frozen=True, slots=True)
class Style:
    """coding: of the tensors that are kept. fuse: Mean.FUSE. gates: gates in 1 bit.

    late: tensors come from disk when they are asked for, not one ahead; gradients that are not asked for next wait there.
    """

    coding: Coding = Coding.EXACT
    fuse: bool = False
    gates: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """style: what is kept of the span. again: nothing but the tensor that enters, which waits in the coding `entry`;
    the span is then computed again, and its tensors wait in `style` while the backward pass is inside."""

    style: Style = Style()
    again: bool = False
    entry: Coding = Coding.EXACT


@dataclass(frozen=True, slots=True)
class Span:
    """Nodes start … stop-1. entry, leaving: the nodes whose storages enter and leave; entry is None where the
    network's input enters."""

    start: int
    stop: int
    entry: int | None
    leaving: int

    def joined(self, last: "Span") -> "Span":
        """From the beginning of this span to the end of a later one."""
        return Span(self.start, last.stop, self.entry, last.leaving)


def spans_of(network: Network) -> list[Span]:
    """The shortest spans of a network, between single tensors that operators with weights, or sums, give."""
    last_read: dict[int, int] = {}
    for node in network.operators:
        for read in node.inputs:
            last_read[network.nodes[read].base] = node.index
    leaving = network.nodes[network.output].base
    last_read[leaving] = len(network.nodes)
    first = next(network.operators).index
    open_values: set[int] = set()
    spans: list[Span] = []
    entry: int | None = None
    for node in network.operators:
        open_values = {value for value in open_values if last_read[value] > node.index}
        if not node.view and last_read.get(node.index, -1) > node.index:
            open_values.add(node.index)
        narrow = open_values == {node.index} and node.pure and node.gradient
        if narrow and (not rule_of(node).cheap or node.operator == "add") and node.index != leaving:
            spans.append(Span(first, node.index + 1, entry, node.index))
            first, entry = node.index + 1, node.index
    return [*spans, Span(first, len(network.nodes), entry, leaving)]


def recipes_of(means: frozenset[Mean], bits: int) -> list[Recipe]:
    """All recipes that the means allow. bits: the fewest that an activation may be rounded to."""
    codings = [Coding.EXACT]
    if Mean.ENCODE in means:
        codings += [coding for coding, count in LOSSY.items() if count >= bits]
    if Mean.SWAP in means:
        codings.append(Coding.DISK)
    fuses = (False, True) if Mean.FUSE in means else (False,)
    gates = (False, True) if Mean.ENCODE in means else (False,)
    styles = [Style(coding, fuse, gate) for fuse in fuses for gate in gates for coding in codings]
    leanest = [Style(Coding.DISK, fuses[-1], gates[-1], late=True)] if Mean.SWAP in means else []
    found = [Recipe(style) for style in styles + leanest]
    if Mean.RECOMPUTE in means:
        inner = [style for style in styles if style.coding is Coding.EXACT] + leanest
        found += [Recipe(style, True, entry) for style in inner for entry in codings]
    return found
