"""Branches: each alternative to blocks, run separately on the features that the original network gives to the blocks.

Branch-wise training and first weights need neither whole SubNets nor gradients through the original network: the features of a
batch are computed once, for all branches. Source: AdaptiveNet (MobiCom 2023) §4.3, branch-wise distillation.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tailor_ir.graph import Alternative, GivenInputs, Node
from tailor_ir.subnets.batch_norms import ElasticBatchNorm, Statistics
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.plans import Instruction, execute, last_reads

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
        nodes = _own_nodes(graph.nodes, alternative.producer, original)
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


def _own_nodes(nodes: Iterable[Node], producer: str, original: set[str]) -> list[Node]:
    """The nodes, in order, that a producer needs and that are not in the original network."""
    needed, found = {producer}, []
    for node in reversed(list(nodes)):
        if node.name not in original and not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            found.append(node)
    return found[::-1]
