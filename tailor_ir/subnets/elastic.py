"""The elastic network, all SubNets in one module with shared weights, one of them active, and its branches.

Branches run each alternative to blocks separately, on the features that the original network gives to the blocks.
Branch-wise training and first weights need neither whole SubNets nor gradients through the original network: the
features of a batch are computed once, for all branches. Source: AdaptiveNet (MobiCom 2023) §4.3, branch-wise
distillation.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from tailor_ir.axes import Axis, Sizes, spatial_in
from tailor_ir.graph import Alternative, GivenInputs, Node, Tensors, needed
from tailor_ir.spaces.selectors import Choice
from tailor_ir.spaces.space import Structure
from tailor_ir.subnets.batch_norms import ElasticBatchNorm, Moments, Observed, Statistics, statistics_of
from tailor_ir.subnets.lowering import Lowering
from tailor_ir.subnets.plans import (
    Call,
    Cuts,
    FixedValues,
    Instruction,
    Outline,
    Plan,
    Program,
    Wiring,
    can_keep,
    execute,
    is_labels,
    last_reads,
    remembered,
    run,
    version_of,
)

PLANS_KEPT = 128
OUTLINES_KEPT = 128


def _keys(names: Iterable[str]) -> dict[str, str]:
    """For each tensor, a unique key that a torch module accepts: without dots, and not an attribute of modules."""
    taken, keys = set(dir(nn.ParameterDict())), {}
    for name in names:
        key = name.replace(".", "/")
        while key in taken:
            key += "/"
        taken.add(key)
        keys[name] = key
    return keys


class Elastic(nn.Module):
    """Call `activate(config)`, then the module with x (B, C, H, W) at that resolution; with several inputs, all in order.

    Parameters are stored once, in `weights`; SubNets use views of them, so gradients of all SubNets add up there.
    """

    def __init__(self, structure: Structure, tensors: Tensors) -> None:
        super().__init__()
        graph, axis_map, space = structure.graph, structure.axis_map, structure.space
        self.structure = structure
        self._graph, self._space = graph, space
        keys = _keys((*graph.parameters, *graph.statistics, *graph.constants))
        self.weights = nn.ParameterDict({keys[n]: nn.Parameter(tensors[n].clone()) for n in graph.parameters})
        self.stored = nn.Module()
        for name in (*graph.statistics, *graph.constants):
            self.stored.register_buffer(keys[name], tensors[name].clone())
        self.labels = frozenset(n for n in graph.constants if spatial_in(axis_map.axes[n]) and is_labels(tensors[n]))
        self._observed = Observed()
        self._norms = {
            node.name: ElasticBatchNorm(node.inputs[3], node.inputs[4], node.float("epsilon", 1e-5), self._observed)
            for node in graph.nodes
            if node.op == "BatchNormalization"
        }
        self.batch_norms = nn.ModuleList(self._norms.values())
        tables: tuple[tuple[Sequence[str], Mapping[str, torch.Tensor | None]], ...] = (
            (graph.parameters, self.weights._parameters),
            ((*graph.statistics, *graph.constants), self.stored._buffers),
        )
        self._storage = {name: (table, keys[name]) for names, table in tables for name in names}
        cuts: dict[tuple[tuple[Axis, ...], bool], Cuts] = {}
        self._cuts: dict[str, Cuts] = {}
        for name in self._storage:
            axes, labels = axis_map.axes[name], name in self.labels
            self._cuts[name] = cuts.setdefault((axes, labels), Cuts(axes, labels=labels))
        self._outlines: OrderedDict[bytes, Outline] = OrderedDict()
        self._own: Statistics = {}
        self._start(space.cardinalities - 1)

    def _start(self, codes: np.ndarray) -> None:
        """Discard all modules and plans, and make those of the active SubNet."""
        self._lowering = Lowering(self._graph, self.tensors(), self.structure.axis_map)
        self._wirings = {node.name: self._wire(node) for node in self._graph.nodes}
        complete = self._make_outline(self._space.cardinalities - 1)
        for call in (*complete.weight_calls, *complete.calls):
            self._wirings[call.node.name] = self._wirings[call.node.name]._replace(call=call)
        self._plans: OrderedDict[bytes, Plan] = OrderedDict()
        self._fixed: FixedValues | None = None
        self._codes = codes
        for others in (0 * codes, self._space.cardinalities // 2):  # these make most modules of later SubNets
            self._plan_of(others)
        self._plan = self._plan_of(codes)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the network to another device or element type. All modules are recreated, since they may hold tensors."""
        super()._apply(fn, recurse)
        self._start(self._codes)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Copies share nothing with the original; plans are recreated when they are needed."""
        return self.__dict__ | {"_plans": OrderedDict(), "_fixed": None}

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as for any module; fixed values are discarded."""
        self._fixed = None
        return super().train(mode)

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Eval mode inside the block; the previous mode is restored afterwards."""
        was_training = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(was_training)

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter, statistic or constant by its name in the network."""
        table, key = self._storage[name]
        tensor = table[key]
        assert tensor is not None
        return tensor

    def tensors(self) -> Tensors:
        """All stored tensors by name, detached."""
        return {name: self.tensor(name).detach() for name in sorted(self._graph.initializers)}

    @property
    def version(self) -> Hashable:
        """A mark of the weights that differs after every change; None if changes cannot be detected."""
        return version_of([self.tensor(name) for name in (*self._graph.parameters, *self._graph.constants)])

    def activate(self, config: Mapping[str, Choice], statistics: Statistics | None = None) -> None:
        """Choose the SubNet that the next calls run, and (optionally) its own BatchNorm statistics."""
        self._codes = self._space.row(config)
        self._plan = self._plan_of(self._codes)
        self._own = statistics or {}
        self._fixed = None

    # -- plans -------------------------------------------------------------------------------------------------------

    def _plan_of(self, codes: np.ndarray) -> Plan:
        with torch.inference_mode(False):  # plans hold tensors that are later used where gradients are needed
            return remembered(self._plans, codes.tobytes(), PLANS_KEPT, lambda: self._make_plan(codes))

    def _make_plan(self, codes: np.ndarray) -> Plan:
        selected = codes[list(self._space.selecting)].tobytes()
        outline = remembered(self._outlines, selected, OUTLINES_KEPT, lambda: self._make_outline(codes))
        sizes = self._space.sizes(codes)
        cuts_of = [self._cuts[name] for name in outline.stored]
        cuts = {of_axes: of_axes(sizes) for of_axes in set(cuts_of)}
        return Plan(
            outline,
            tuple([cuts[of_axes] for of_axes in cuts_of]),
            tuple([self._module(call.node, sizes) for call in outline.weight_calls]),
            tuple([self._module(call.node, sizes) for call in outline.calls]),
        )

    def _module(self, node: Node, sizes: Sizes) -> nn.Module:
        return self._norms[node.name] if node.name in self._norms else self._lowering.module(node, sizes)

    def _wire(self, node: Node) -> Wiring:
        data, operands = self._lowering.data, self._lowering.operands(node)
        values = tuple(name for name in dict.fromkeys((*operands, *node.outputs)) if name in data)
        stored = {name: None for name in operands if name in self._storage}
        return Wiring(Call(node, operands, node.outputs, ()), stored, values, node.outputs[0] in data)

    def _make_outline(self, codes: np.ndarray) -> Outline:
        nodes, outputs = self.structure.nodes(codes)
        stored: dict[str, None] = {}
        needed = {*outputs, *self._graph.inputs}
        weight_calls: list[Call] = []
        calls: list[Call] = []
        wirings = self._wirings
        for node in reversed(nodes):
            wiring = wirings[node.name]
            if wiring.call.node is not node:  # it reads another producer
                wiring = self._wire(node)
            call, own, data, depends_on_input = wiring
            if own:
                stored.update(own)
            last = () if needed.issuperset(data) else tuple([name for name in data if name not in needed])
            if last:
                needed.update(last)
            if last != call.released:
                call = Call(call.node, call.operands, call.outputs, last)
            (calls if depends_on_input else weight_calls).append(call)
        return Outline(tuple(stored), tuple(reversed(weight_calls)), tuple(reversed(calls)), outputs)

    def program(self, config: Mapping[str, Choice]) -> Program:
        """All instructions of a SubNet. SubNets whose first instructions are equal compute equal values with them."""
        plan = self._plan_of(self._space.row(config))
        outline, cuts = plan.outline, dict(zip(plan.outline.stored, plan.cuts, strict=True))
        weights = list(zip(outline.weight_calls, plan.weight_modules, strict=True))
        waiting = {name: pair for pair in weights for name in pair[0].outputs}
        instructions: list[Instruction] = []

        def add(call: Call, module: nn.Module) -> None:
            for name in call.operands:
                if name in waiting:
                    earlier_call, earlier_module = waiting[name]
                    add(earlier_call, earlier_module)
            for name in call.outputs:
                waiting.pop(name, None)
            own = tuple([(name, cuts[name]) for name in dict.fromkeys(call.operands) if name in cuts])
            instructions.append(Instruction(module, call.operands, call.outputs, own))

        for call, module in zip(outline.calls, plan.modules, strict=True):
            add(call, module)
        for call, module in weights:  # the remaining calls, whose results the network outputs directly
            if call.outputs[0] in waiting:
                add(call, module)
        return Program(tuple(instructions), outline.outputs)

    # -- running -----------------------------------------------------------------------------------------------------

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The network's output; if it has several, a tuple in the order of its ONNX form."""
        return self.watched(inputs, ())[0]

    def watched(self, given: GivenInputs, names: Collection[str]) -> tuple[Any, dict[str, torch.Tensor]]:
        """The network's output, and by name the values of `names` that the active SubNet computes."""
        values = self._fixed_values()
        values.update(self._graph.named_inputs(given))
        run(self._plan.outline.calls, self._plan.modules, values, names)
        seen = {name: values[name] for name in names if name in values}
        data = self._lowering.data
        found = [(name, values[name]) for name in self._plan.outline.outputs]
        # callers own the outputs, so weights among them are copied
        outputs = tuple([value if name in data else value.clone() for name, value in found])
        return (outputs[0] if len(outputs) == 1 else outputs), seen

    def _fixed_values(self) -> dict[str, torch.Tensor]:
        """Values that do not depend on x: cut tensors, and values that follow from them alone.

        Without gradients they are kept until a tensor changes, or another SubNet is activated.
        """
        sources = [self.tensor(name) for name in self._plan.outline.stored]
        if torch.is_grad_enabled() or not sources or not can_keep(sources):
            return self._compute_fixed(sources)
        if self._fixed is None or not self._fixed.holds(sources):
            self._fixed = FixedValues(sources, version_of(sources), self._compute_fixed(sources))
        return dict(self._fixed.values)

    def _compute_fixed(self, sources: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        plan = self._plan
        cut_sources = zip(plan.outline.stored, plan.cuts, sources, strict=True)
        values = {name: source if cut is None else cut(source) for name, cut, source in cut_sources}
        values.update(self._own)
        run(plan.outline.weight_calls, plan.weight_modules, values)
        return values

    @torch.no_grad()
    def observe(self, batches: Iterable[GivenInputs]) -> Statistics:
        """BatchNorm statistics of the active SubNet: means over the batches. Nothing shared is written."""
        return self.observed(partial(self, *self._graph.named_inputs(given).values()) for given in batches)

    @torch.no_grad()
    def observed(self, runs: Iterable[Callable[[], Any]]) -> Statistics:
        """BatchNorm statistics of the given runs, in eval mode: means over the runs. Nothing shared is written.

        Computations of `runs` itself between the runs are not observed.
        """
        moments: dict[ElasticBatchNorm, Moments] = {}
        with self.evaluated():
            try:
                for run_once in runs:
                    self._observed.moments = moments
                    run_once()
                    self._observed.moments = None
            finally:
                self._observed.moments = None
        return statistics_of(moments.items())


Features = Mapping[str, torch.Tensor]
"""Values of the original network by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """An alternative to blocks, at the sizes of the largest SubNet.

    variable, choice: the variable that chooses it, and its name there. entry: the value that it reads. exit: the value that it
    replaces. producer: its own result. parameters: the names of its trained tensors. norms: its BatchNorms.
    """

    variable: str
    choice: str
    entry: str
    exit: str
    producer: str
    parameters: tuple[str, ...]
    norms: tuple[ElasticBatchNorm, ...]
    instructions: tuple[Instruction, ...]


class Branches:
    """All alternatives of a network to its blocks, or to its answer. Features and branches are those of the largest SubNet.

    kind: kind of the variables that choose them: "block", or "exit" for the heads of exits.
    """

    def __init__(self, elastic: Elastic, kind: str = "block") -> None:
        self._elastic = elastic
        graph, space = elastic.structure.graph, elastic.structure.space
        self._original = elastic.program(space.max_config).instructions
        variables = {
            producer: (space.variables[column].name, choice)
            for selection in space.selections
            for column in selection.variables
            if space.variables[column].kind == kind
            for producer, choice in zip(selection.producers, space.variables[column].choices, strict=False)
        }
        own, data = {node.name for node in graph.original().nodes}, graph.data_values()
        self.branches: tuple[Branch, ...] = tuple(
            self._branch(each, variables[each.producer][0], own, data)
            for each in graph.alternatives
            if each.producer in variables
        )
        self._wanted = frozenset(name for branch in self.branches for name in (branch.entry, branch.exit))
        self._released = last_reads(self._original)

    def features(self, x_BCHW: GivenInputs, more: Collection[str] = ()) -> dict[str, torch.Tensor]:
        """The values of the original network that branches read or replace; no gradients, BatchNorm by its statistics.

        more: further values of the original network.
        """
        wanted, found = self._wanted.union(more), {}

        def see(name: str, value: torch.Tensor) -> None:
            if name in wanted:
                found[name] = value

        self.watch(x_BCHW, see)
        return found

    @torch.no_grad()
    def watch(self, x_BCHW: GivenInputs, see: Callable[[str, torch.Tensor], None]) -> None:
        """Call `see` once for every value of the original network on a batch; values are released after their last reader."""
        values = self._elastic.structure.graph.named_inputs(x_BCHW)
        for name, value in values.items():
            see(name, value)
        with self._elastic.evaluated():
            for instruction, released in zip(self._original, self._released, strict=True):
                self._run((instruction,), values)
                for name in instruction.outputs:
                    see(name, values[name])
                for name in released:
                    del values[name]

    def run(self, branch: Branch, features: Features) -> torch.Tensor:
        """The result of a branch on the features of its entry; gradients flow to its own parameters."""
        return self.values(branch, features)[branch.producer]

    def values(self, branch: Branch, features: Features) -> dict[str, torch.Tensor]:
        """All values of a branch on the features of its entry."""
        values = {branch.entry: features[branch.entry]}
        self._run(branch.instructions, values)
        return values

    @torch.no_grad()
    def observe(self, batches: Iterable[GivenInputs]) -> Statistics:
        """BatchNorm statistics of all branches: means over the batches. Nothing is written."""
        return self._elastic.observed(self._run_all(self.features(x)) for x in batches)

    def _run_all(self, features: Features) -> Callable[[], None]:
        def run() -> None:
            for branch in self.branches:
                self.run(branch, features)

        return run

    def _run(self, instructions: Sequence[Instruction], values: dict[str, torch.Tensor]) -> None:
        execute(instructions, self._elastic.tensor, values)

    def _branch(self, alternative: Alternative, variable: str, original: set[str], data: frozenset[str]) -> Branch:
        graph = self._elastic.structure.graph
        nodes = needed([node for node in graph.nodes if node.name not in original], (alternative.producer,))
        written = {name for node in nodes for name in node.outputs}
        read = {name for node in nodes for name in node.inputs if name in data} - written
        (entry,) = read
        config = {**self._elastic.structure.space.max_config, variable: alternative.choice}
        program = self._elastic.program(config)
        instructions = tuple(one for one in program.instructions if not written.isdisjoint(one.outputs))
        trained = set(graph.parameters)
        return Branch(
            variable=variable,
            choice=alternative.choice,
            entry=entry,
            exit=alternative.value,
            producer=alternative.producer,
            parameters=tuple(dict.fromkeys(n for node in nodes for n in node.inputs if n in trained)),
            norms=tuple(one.module for one in instructions if isinstance(one.module, ElasticBatchNorm)),
            instructions=instructions,
        )
