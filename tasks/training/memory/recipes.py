"""Recipes for the spans of a network: the values kept for the backward pass, and the costs of operators in a step.

A *span* is a run of operators that one tensor enters and one tensor leaves. Its *recipe* says how activations get from
the forward pass to the backward pass. Costs are seconds and transient bytes, by one run of each operator alone;
operators of equal arguments are run once. Inputs are random numbers, so nothing of the size of a whole step is ever in
memory.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.network import Network, ReadsNode, StepNode
from tasks.training.memory.operators import PERMUTE, TRANSPOSE, Given, rule_of
from tasks.training.memory.storage import Bits, CodedGroups, Gates, StorageCount, buffer_of


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


PROBE = 2**20
"""Elements with which rates of codings and of the disk are measured."""


@dataclass(frozen=True, slots=True)
class StepNodeCost:
    """Seconds of an operator, and bytes.

    Spikes: beyond the value, or the gradients, while the operator runs. aside: kept for the backward pass.
    """

    forward_s: float = 0.0
    backward_s: float = 0.0
    forward_spike: int = 0
    backward_spike: int = 0
    aside: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds a byte of a float32 tensor: to put it aside, and to get it back; spikes of 1 MiB chunks come on top."""

    encode: dict[Coding, float]
    decode: dict[Coding, float]
    gate: float


@dataclass(frozen=True)
class StepCosts:
    """nodes: by index."""

    nodes: dict[int, StepNodeCost]
    rates: Rates


def measure(network: Network, tensors: dict[str, Tensor], x: Tensor, folder: str | None = None) -> StepCosts:
    """Leaves torch's random state as it was. tensors: those of the module by name. folder: of what is swapped to disk."""
    known: dict[Any, StepNodeCost] = {}
    costs: dict[int, StepNodeCost] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for node in network.operators:
            if node.view or not node.pure:
                costs[node.index] = StepNodeCost()
                continue
            layouts = tuple((network.nodes[read].shape, network.nodes[read].stride) for read in node.inputs)
            turned = tuple(reader.operator for reader in network.readers[node.index] if reader.view)
            plain = repr([arg for arg in node.args if not isinstance(arg, ReadsNode)]) + repr(node.kwargs)
            key = (node.operator, layouts, turned, node.wants, plain)
            if key not in known:
                known[key] = _measured(network, node, tensors, x)
            costs[node.index] = known[key]
        return StepCosts(costs, _rates(folder))


def _stand_ins(network: Network, node: StepNode, tensors: dict[str, Tensor], x: Tensor) -> list[Any]:
    found: list[Any] = []
    for read in node.inputs:
        source = network.nodes[read]
        if source.kind == "operator":
            extent = _extent(source)
            flat = torch.randn(extent) if source.floating else torch.zeros(extent, dtype=torch.int64)
            value = flat.as_strided(source.shape, source.stride)
        else:
            value = network.source(source, tensors, x).detach()
            value = value.clone() if source.kind == "buffer" else value
        found.append(value)
    return found


def _extent(node: StepNode) -> int:
    """Elements from the first to the last one of a value, gaps between them included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(node.shape, node.stride, strict=True))


def _gradient_like(network: Network, node: StepNode, value: Tensor) -> Tensor:
    """A gradient with its axes in the order in which it comes from the first reader of a value."""
    for reader in network.readers[node.index]:
        if rule_of(reader) in (PERMUTE, TRANSPOSE):
            turned = reader.run([value])
            (gradient,) = rule_of(reader).backward(reader, torch.randn(turned.shape), Given([None], [value.shape]))
            return gradient
    return torch.randn(value.shape)


def _measured(network: Network, node: StepNode, tensors: dict[str, Tensor], x: Tensor) -> StepNodeCost:
    rule = rule_of(node)
    inputs = _stand_ins(network, node, tensors, x)
    with StorageCount(inputs) as count:
        before = count.bytes
        value, aside = rule.forward(node, inputs)
        after = count.bytes
    aside_bytes = sum(each.nbytes for each in aside)
    forward_spike = max(count.peak_bytes - after, 0)
    assert after >= before
    start = time.perf_counter()
    rule.forward(node, inputs)
    forward_s = time.perf_counter() - start
    if not node.gradient or not isinstance(value, Tensor):
        return StepNodeCost(forward_s, 0.0, forward_spike, 0, aside_bytes)
    gradient = _gradient_like(network, node, value)
    needs = rule.needs(node)
    gates = Gates.of(value, *needs.gate) if needs.gate else None
    given = Given(
        [tensor if place in needs.inputs else None for place, tensor in enumerate(inputs)],
        [tensor.shape for tensor in inputs],
        aside,
        gates.times if gates else None,
    )
    del value
    with StorageCount([gradient, *inputs]) as count:
        found = rule.backward(node, gradient, given)
        spike = max(count.peak_bytes - count.bytes, 0)
    del found
    start = time.perf_counter()
    rule.backward(node, gradient, given)
    return StepNodeCost(forward_s, time.perf_counter() - start, forward_spike, spike, aside_bytes)


def _rates(folder: str | None) -> Rates:
    probe = torch.randn(PROBE)

    def rate(work: Any) -> tuple[float, Any]:
        work()
        start = time.perf_counter()
        found = work()
        return (time.perf_counter() - start) / probe.nbytes, found

    encode, decode = {Coding.EXACT: 0.0}, {Coding.EXACT: 0.0}
    for coding, bits in ((Coding.EIGHT, 8), (Coding.FOUR, 4)):
        encode[coding], groups = rate(lambda bits=bits: CodedGroups.of(probe, bits))
        decode[coding], _ = rate(groups.value)
    with tempfile.TemporaryFile(dir=folder) as file:
        content = buffer_of(probe)
        encode[Coding.DISK], _ = rate(lambda: os.pwrite(file.fileno(), content, 0))
        decode[Coding.DISK], _ = rate(lambda: os.preadv(file.fileno(), [content], 0))
    gate, _ = rate(lambda: Gates.of(probe, 0.0, float("inf")))
    return Rates(encode, decode, gate)
