"""The operators of SubNets, derived from the axes: the variables on which each depends, and the unique operators.

An operator's shapes depend on few variables. Its axes are evaluated over all choices of these at once; a template describes
every distinct row of sizes once, and blocks that are alike share templates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from heapq import heapify, heappop, heappush

import numpy as np

from solvers.tables import spread
from tailor_ir.axes import Axis
from tailor_ir.graph import Tensors
from tailor_ir.operators.features import OperatorFeature
from tailor_ir.operators.templates import SizeRow, Template, TemplateInputs, find_clusters
from tailor_ir.spaces.presence import Presence, Roster, Variables
from tailor_ir.spaces.selectors import Config
from tailor_ir.spaces.space import Grids, Reach, Space, Structure

ABSENT = -1

Choices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChosenFeatures(Mapping[Choices, OperatorFeature | None]):
    """Choice indices of a term's variables -> its operator, None if the SubNet does not have it.

    `numbers` has one axis for each variable: positions in `operators`, or ABSENT.
    """

    numbers: np.ndarray
    operators: Sequence[OperatorFeature]

    def __getitem__(self, choices: Choices) -> OperatorFeature | None:
        if len(choices) != self.numbers.ndim or any(
            not 0 <= c < n for c, n in zip(choices, self.numbers.shape, strict=True)
        ):
            raise KeyError(choices)
        number = int(self.numbers[tuple(choices)])
        return None if number == ABSENT else self.operators[number]

    def __iter__(self) -> Iterator[Choices]:
        return iter(np.ndindex(self.numbers.shape))

    def __len__(self) -> int:
        return self.numbers.size


@dataclass(frozen=True, slots=True)
class OperatorTerm:
    """One operator of the largest network over all configs.

    `variables`: columns of extended codes on which it depends. `features`: choice indices of these -> the operator, None if the
    SubNet does not have it. The operators of a SubNet are the terms' features under its choices.
    """

    variables: tuple[int, ...]
    features: ChosenFeatures


@dataclass(frozen=True, slots=True)
class PlacedOperator:
    """An operator at its place in one SubNet.

    `inputs`, `outputs`: values in the order of the feature's, by their names in the graph and in exported files. `names`: all
    its nodes and values.
    """

    feature: OperatorFeature
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class PlacedOperators:
    """A SubNet's operators from its inputs to its outputs, each after the operators that it reads from."""

    operators: tuple[PlacedOperator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OperatorPlace:
    """An operator at its place in the whole network, for all SubNets that have it.

    `reads`: values by their names in the original network; a SubNet may read another producer of such a value. `names`: as in
    `PlacedOperator`.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    names: frozenset[str]
    present: Presence


def running_order(reads: Sequence[Sequence[str]], writes: Sequence[Sequence[str]]) -> list[int]:
    """Positions of operators in an executable order, as close to the given one as their values allow."""
    writer = {value: position for position, values in enumerate(writes) for value in values}
    sorter = TopologicalSorter({i: [writer[v] for v in values if v in writer] for i, values in enumerate(reads)})
    sorter.prepare()
    order: list[int] = []
    ready = list(sorter.get_ready())
    heapify(ready)
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for position in sorter.get_ready():
            heappush(ready, position)
    return order


@dataclass(frozen=True, slots=True)
class UniqueOperators(Mapping[OperatorFeature, Config]):
    """Operator -> a canonical config that has it: the largest SubNet's, except for the choices in `witnesses`."""

    space: Space
    witnesses: Mapping[OperatorFeature, tuple[tuple[int, ...], Choices]]

    def __getitem__(self, feature: OperatorFeature) -> Config:
        variables = self.space.variables
        config = self.space.max_config
        for index, choice in zip(*self.witnesses[feature], strict=True):
            config[variables[index].name] = variables[index].choices[choice]
        return config

    def __contains__(self, feature: object) -> bool:
        return feature in self.witnesses

    def __iter__(self) -> Iterator[OperatorFeature]:
        return iter(self.witnesses)

    def __len__(self) -> int:
        return len(self.witnesses)


@dataclass(frozen=True, slots=True)
class _Term:
    """A cluster's sizes over all choices. `numbers`: positions of its operators, one axis for each of `variables`."""

    variables: Variables
    numbers: np.ndarray
    presence: Presence


class OperatorTable:
    """Reads operators off the axes of one SuperNet, for one batch size."""

    def __init__(self, structure: Structure, constants: Tensors, batch: int = 1) -> None:
        """constants: the graph's constants, by name."""
        self.space, self._graph = structure.space, structure.graph
        self._batch = batch
        context = TemplateInputs(structure, constants)
        clusters = find_clusters(structure.graph, constants, structure.unit_of())
        known: dict[tuple[object, ...], Template] = {}
        self._own: list[Template] = []  # each cluster's own template, with its names
        self.templates: list[tuple[Template, Sequence[Axis]]] = []  # each cluster's shared template and own axes
        for cluster in clusters:
            template = Template(context, cluster)
            self.templates.append((known.setdefault(template.key, template), template.axes))
            self._own.append(template)
        self._presence = [structure.presence[cluster[0].name] for cluster in clusters]
        self._roster = Roster(self._presence)
        self._grids = Grids(self.space, batch)

    # -- one SubNet --------------------------------------------------------------------------------------------------

    def operators(self, codes: np.ndarray) -> tuple[OperatorFeature, ...]:
        """The operators of one SubNet, in order."""
        return tuple(self.numbered(codes).values())

    def numbered(self, codes: np.ndarray) -> dict[int, OperatorFeature]:
        """The operators of one SubNet by their positions in the whole network, which are the same in all SubNets."""
        sizes = self.space.sizes(codes, self._batch)
        return {
            position: template.feature(tuple([sizes(axis) for axis in axes]))
            for position, ((template, axes), there) in enumerate(zip(self.templates, self._there(codes), strict=True))
            if there
        }

    def _there(self, codes: np.ndarray) -> list[bool]:
        """For each cluster, whether one SubNet has it."""
        return self._roster.at(self.space.extended(codes[None])[0])

    def placed(self, codes: np.ndarray) -> PlacedOperators:
        """The operators of one SubNet with the values that each reads, of the chosen producers, and writes."""
        source = self.space.sources.under(codes)
        present = [own for own, there in zip(self._own, self._there(codes), strict=True) if there]
        placed = tuple(
            PlacedOperator(feature, tuple(source.get(name, name) for name in own.operands), own.results, own.names)
            for feature, own in zip(self.operators(codes), present, strict=True)
        )
        outputs = tuple(source.get(name, name) for name in self._graph.outputs)
        order = running_order([one.inputs for one in placed], [one.outputs for one in placed])
        return PlacedOperators(tuple(placed[position] for position in order), self._graph.inputs, outputs)

    # -- all SubNets -------------------------------------------------------------------------------------------------

    def places(self) -> tuple[OperatorPlace, ...]:
        """Every operator of the largest network with its inputs and outputs, in the order of `numbered` and `terms`."""
        return tuple(
            OperatorPlace(own.operands, own.results, own.names, where)
            for own, where in zip(self._own, self._presence, strict=True)
        )

    def terms(self) -> Iterator[OperatorTerm]:
        """One term for each operator of the largest network."""
        terms, witnesses = self._enumerated
        operators = tuple(witnesses)
        for term in terms:
            where = term.presence
            variables = tuple(sorted({*term.variables, *where.variables}))
            numbers = spread(term.variables, term.numbers, variables)
            if not where.always:
                numbers = np.where(spread(where.variables, where.mask, variables), numbers, ABSENT)
            yield OperatorTerm(variables, ChosenFeatures(numbers, operators))

    def unique(self) -> UniqueOperators:
        """Every operator that some SubNet has, each with a config that has it."""
        return UniqueOperators(self.space, self._enumerated[1])

    @cached_property
    def _enumerated(self) -> tuple[list[_Term], dict[OperatorFeature, tuple[tuple[int, ...], Choices]]]:
        """Terms, and each distinct operator with variables and choices that give it, all others at their largest."""
        numbers_of: dict[OperatorFeature, int] = {}
        witnesses: dict[OperatorFeature, tuple[tuple[int, ...], Choices]] = {}
        filled: dict[tuple[int, bytes, bytes], np.ndarray] = {}
        terms = []
        derived_from = len(self.space.variables)
        for (template, axes), where in zip(self.templates, self._presence, strict=True):
            variables, there = self._enumerate_over(axes, where)
            shape = self._grids.shape(variables)
            follows = bool(variables) and variables[-1] >= derived_from
            if follows:
                self._keep_possible(variables, there)
            rows = self._grids.rows(axes, variables)
            key = id(template), rows.tobytes(), there.tobytes()
            if key not in filled:
                numbers = np.full(len(rows), ABSENT, np.int32)
                seen: dict[SizeRow, int] = {}
                # the largest choices first: as canonical configs do, a witness has the largest of the choices that give the
                # same sizes
                listed = rows.tolist()
                for at in np.flatnonzero(there)[::-1].tolist():
                    row = tuple(listed[at])
                    number = seen.get(row)
                    if number is None:
                        feature = template.feature(row)
                        number = seen[row] = numbers_of.setdefault(feature, len(numbers_of))
                        if number == len(witnesses):
                            choices = tuple(int(i) for i in np.unravel_index(at, shape))
                            witnesses[feature] = self._code(variables, choices) if follows else (variables, choices)
                    numbers[at] = number
                filled[key] = numbers
            terms.append(_Term(variables, filled[key].reshape(shape), where))
        return terms, witnesses

    def _enumerate_over(self, axes: Sequence[Axis], where: Presence) -> tuple[Variables, np.ndarray]:
        """The variables whose choices give an operator all its sizes, and the combinations under which it is present.

        Presence adds no variables if the largest choices have the operator, whatever its sizes.
        """
        variables = self._grids.variables(axes)
        if not set(where.variables).isdisjoint(variables) or not where.at(self._largest):
            variables = tuple(sorted({*variables, *where.variables}))
            mask = spread(where.variables, where.mask, variables)
        else:
            mask = np.asarray(True)
        return variables, np.broadcast_to(mask, self._grids.shape(variables)).reshape(-1).copy()

    def _keep_possible(self, variables: Variables, there: np.ndarray) -> None:
        """Remove the combinations that no SubNet has from `there`."""
        deciders = self._reach.deciders(variables)
        shape = self._grids.shape(variables)
        at = np.flatnonzero(there)
        values = np.stack(np.unravel_index(at, shape), axis=1)[:, [variables.index(column) for column in deciders]]
        different, number = np.unique(values, axis=0, return_inverse=True)
        possible = np.array([self._reach.code(deciders, each) is not None for each in different], bool)
        there[at] = possible[number]

    def _code(self, variables: Variables, choices: Choices) -> tuple[Variables, Choices]:
        """Variables and choices of a SubNet that has a given possible combination; without those at their largest."""
        deciders = self._reach.deciders(variables)
        chosen = dict(zip(variables, choices, strict=True))
        code = self._reach.code(deciders, np.array([chosen[column] for column in deciders]))
        assert code is not None
        code = code.copy()
        for column, choice in chosen.items():
            if column < len(code):
                code[column] = choice
        changed = np.flatnonzero(code != self.space.cardinalities - 1)
        return tuple(changed.tolist()), tuple(code[changed].tolist())

    @cached_property
    def _largest(self) -> np.ndarray:
        """The extended code of the largest SubNet."""
        return self.space.extended(self.space.cardinalities[None] - 1)[0]

    @cached_property
    def _reach(self) -> Reach:
        return Reach(self.space)
