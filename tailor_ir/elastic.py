"""The elastic network: all SubNets in one module, weights shared, one active at a time."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tailor_ir.axes import spatial_in
from tailor_ir.graph import Graph, Node, Tensors
from tailor_ir.lowering import Lowering, apply_config
from tailor_ir.propagate import AxisMap
from tailor_ir.regions import Regions
from tailor_ir.space import Choice, Space
from tailor_ir.weights import Cut, is_labels, make_cut

if TYPE_CHECKING:
    from collections.abc import Iterator

Statistics = dict[str, torch.Tensor]  # name of a running mean or variance -> (channels of the SubNet,)
PLANS_KEPT = 128


@dataclass(frozen=True, slots=True)
class Operand:
    """A computed value, or a stored tensor with the cut that this SubNet needs."""

    name: str
    stored: bool
    cut: Cut | None


@dataclass(frozen=True, slots=True)
class Step:
    """One module call."""

    module: nn.Module
    operands: tuple[Operand, ...]
    outputs: tuple[str, ...]
    released: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All calls of one SubNet in order, and the sizes of its BatchNorm statistics."""

    steps: tuple[Step, ...]
    output: str
    statistics: dict[str, Cut | None]


class ElasticBatchNorm(nn.Module):
    """BatchNorm of the active SubNet: batch statistics in training (nothing is written), its own or stored ones else."""

    def __init__(self, mean_name: str, variance_name: str, epsilon: float) -> None:
        super().__init__()
        self.mean_name, self.variance_name, self.epsilon = mean_name, variance_name, epsilon
        self.own: Statistics = {}
        self.observed_batches = -1  # below zero: not observing

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        if self.observed_batches >= 0:
            return self._observe(x, scale, bias)
        if self.training:
            return F.batch_norm(x, None, None, scale, bias, training=True, eps=self.epsilon)
        mean = self.own.get(self.mean_name, mean)
        variance = self.own.get(self.variance_name, variance)
        return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=self.epsilon)

    def _observe(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        if not self.observed_batches:
            self.own = {self.mean_name: torch.zeros_like(scale), self.variance_name: torch.ones_like(scale)}
        self.observed_batches += 1
        momentum = 1.0 / self.observed_batches  # the mean over all batches
        mean, variance = self.own[self.mean_name], self.own[self.variance_name]
        return F.batch_norm(x, mean, variance, scale, bias, training=True, momentum=momentum, eps=self.epsilon)


def _key(name: str) -> str:
    return name.replace(".", "/")


class Elastic(nn.Module):
    """`activate(config)`, then call it with x of that config's resolution, (B, C, H, W).

    Parameters live once, in `weights`; SubNets use views of them, so gradients of all SubNets add up there.
    """

    def __init__(self, graph: Graph, tensors: Tensors, axis_map: AxisMap, regions: Regions, space: Space) -> None:
        super().__init__()
        self.graph, self.axis_map, self.regions, self.space = graph, axis_map, regions, space
        self.weights = nn.ParameterDict({_key(n): nn.Parameter(tensors[n].clone()) for n in graph.parameters})
        self.stored = nn.Module()
        for name in (*graph.statistics, *graph.constants):
            self.stored.register_buffer(_key(name), tensors[name].clone())
        self.labels = frozenset(n for n in graph.constants if spatial_in(axis_map.axes[n]) and is_labels(tensors[n]))
        self._lowering = Lowering(graph, tensors, axis_map)
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        self._norms = {
            node.name: ElasticBatchNorm(node.inputs[3], node.inputs[4], node.float("epsilon", 1e-5))
            for node in graph.nodes
            if node.op == "BatchNormalization"
        }
        self.batch_norms = nn.ModuleList(self._norms.values())
        self.activate(space.max_config)

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter, statistic or constant by its name in the network."""
        key = _key(name)
        return self.weights[key] if key in self.weights else self.stored.get_buffer(key)

    def tensors(self) -> Tensors:
        """All stored tensors by name, detached."""
        return {name: self.tensor(name).detach() for name in sorted(self.graph.initializers)}

    def activate(self, config: Mapping[str, Choice], statistics: Statistics | None = None) -> None:
        """Choose the SubNet that the next calls run, and (optionally) its own BatchNorm statistics."""
        codes = self.space.canonical_codes(self.space.row(config)[None])[0]
        self._plan = self._plan_of(codes)
        for norm in self._norms.values():
            norm.own = statistics or {}

    def _plan_of(self, codes: np.ndarray) -> Plan:
        key = codes.tobytes()
        if key not in self._plans:
            self._plans[key] = self._make_plan(codes)
            if len(self._plans) > PLANS_KEPT:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key]

    def _make_plan(self, codes: np.ndarray) -> Plan:
        subnet = apply_config(self.graph, self.regions, self.space, codes)
        cuts: dict[str, Cut | None] = {}
        initializers = self.graph.initializers

        def operand(name: str) -> Operand:
            if name in initializers and name not in cuts:
                cuts[name] = make_cut(self.axis_map.axes[name], subnet.sizes, labels=name in self.labels)
            return Operand(name, name in initializers, cuts.get(name))

        calls = []
        last_use: dict[str, int] = {}
        for index, node in enumerate(subnet.nodes):
            module, names = self._module(node, subnet.sizes)
            calls.append((module, tuple(operand(name) for name in names), node.outputs))
            last_use.update((name, index) for name in names)
        kept = {*subnet.outputs, *self.graph.inputs}
        steps = tuple(
            Step(module, operands, outputs, tuple(n for n, i in last_use.items() if i == index and n not in kept))
            for index, (module, operands, outputs) in enumerate(calls)
        )
        statistics = {n: cuts[n] for n in self.graph.statistics if n in cuts}
        return Plan(steps, subnet.outputs[0], statistics)

    def _module(self, node: Node, sizes: object) -> tuple[nn.Module, tuple[str, ...]]:
        if node.op == "BatchNormalization":
            return self._norms[node.name], node.inputs[:5]
        lowered = self._lowering.lower(node, sizes)  # type: ignore[arg-type]
        return lowered.module, lowered.inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values: dict[str, torch.Tensor] = {self.graph.inputs[0]: x}
        for step in self._plan.steps:
            arguments = [
                values[o.name]
                if not o.stored
                else (self.tensor(o.name) if o.cut is None else o.cut(self.tensor(o.name)))
                for o in step.operands
            ]
            result = step.module(*arguments)
            if len(step.outputs) == 1:
                values[step.outputs[0]] = result
            else:
                values.update(zip(step.outputs, result, strict=True))
            for name in step.released:
                values.pop(name, None)
        return values[self._plan.output]

    def stored_statistics(self) -> Statistics:
        """The stored BatchNorm statistics, cut to the active SubNet."""
        return {
            name: (self.tensor(name) if cut is None else cut(self.tensor(name))).clone()
            for name, cut in self._plan.statistics.items()
        }

    @torch.no_grad()
    def observe(self, batches: Iterable[torch.Tensor]) -> Statistics:
        """BatchNorm statistics of the active SubNet: means over the batches. Nothing shared is written."""
        was_training = self.training
        with self._observing():
            self.eval()
            for x in batches:
                self(x)
            found = {name: value for norm in self._norms.values() for name, value in norm.own.items()}
        self.train(was_training)
        return {name: found[name] for name in self._plan.statistics if name in found}

    @contextmanager
    def _observing(self) -> "Iterator[None]":
        for norm in self._norms.values():
            norm.own, norm.observed_batches = {}, 0
        try:
            yield
        finally:
            for norm in self._norms.values():
                norm.own, norm.observed_batches = {}, -1
