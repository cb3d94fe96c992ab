"""What each operator of a network costs in a training step: seconds and transient bytes, by one run of each alone.

Operators of equal arguments are run once. Inputs are random numbers, so nothing of the size of a whole step is ever
in memory.
"""

import os
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.training.memory.codings import CodedGroups, Gates
from tasks.training.memory.counting import StorageCount
from tasks.training.memory.disk import buffer_of
from tasks.training.memory.network import Network, ReadsNode, StepNode
from tasks.training.memory.operators import PERMUTE, TRANSPOSE, Given, rule_of
from tasks.training.memory.recipes import Coding

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
