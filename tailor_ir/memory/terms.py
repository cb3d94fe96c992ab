"""The steps of all SubNets as arrays over few variables, for the walk in `tailor_ir.memory.lifetimes`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from solvers.tables import Derived
from tailor_ir.axes import Axis
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules, in_blocks, laid_out, patches_bytes, read_as, stored_shape
from tailor_ir.memory.planning import find_steps
from tailor_ir.memory.steps import Steps
from tailor_ir.spaces.grids import Grids
from tailor_ir.spaces.presence import Presence, Variables
from tailor_ir.spaces.structure import Structure

FLOAT_BYTES = 4
Key = tuple[int, ...]  # bytes of an element, then the shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTerm:
    """A value as arrays over the choices of its `variables` (columns of choice indices), one axis for each variable.

    bytes_: bytes in memory. shapes: a number for each shape, including padding; equal shapes have equal numbers. stored: a
    number for each stored shape. blocked: whether channels are stored in blocks. temporary: the value only exists during one
    step and shares its memory with no other value.
    """

    variables: Variables
    bytes_: np.ndarray
    shapes: np.ndarray
    stored: np.ndarray
    blocked: np.ndarray
    temporary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerm:
    """A step; reads, writes and in_place are positions in `MemoryTerms.values`. present: the SubNets that run it."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[int, ...]
    view: bool
    relayout: bool
    present: Presence


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """The steps of all SubNets.

    sources: value with several producers -> its producers, each with the SubNets in which it is chosen. inputs, outputs: values
    of the network. same_shape: as `Rules.reuses`. planned: as `Rules.planned`. derived: derived columns of extended codes
    (`Space`).
    """

    values: tuple[ValueTerm, ...]
    steps: tuple[StepTerm, ...]
    sources: Mapping[int, tuple[tuple[int, Presence], ...]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    same_shape: bool
    planned: bool = False
    derived: tuple[Derived, ...] = ()


def memory_terms(structure: Structure, element_bytes: Mapping[str, int], rules: Rules = ONNXRUNTIME) -> MemoryTerms:
    """The steps of a network's SubNets, batch 1. element_bytes: bytes per element of values that are not float32."""
    grids = Grids(structure.space)

    def sizes_of(axis: Axis) -> frozenset[int]:
        return frozenset(grids.rows((axis,), grids.variables((axis,))).reshape(-1).tolist())

    steps = find_steps(structure, sizes_of, rules)
    number = {name: at for at, name in enumerate(steps.layouts)}
    sources = structure.space.sources
    return MemoryTerms(
        values=_Values(steps, grids, element_bytes, rules).terms(),
        steps=tuple(
            StepTerm(
                reads=tuple(number[name] for name in step.reads),
                writes=tuple(number[name] for name in step.writes),
                in_place=tuple(number[name] for name in step.in_place),
                view=step.view,
                relayout=step.relayout,
                present=step.present,
            )
            for step in steps.steps
        ),
        sources={
            number[each.value]: tuple((number[name], where) for name, where in sources.all_of(each.value))
            for each in structure.space.selections
        },
        inputs=tuple(number[name] for name in structure.graph.inputs),
        outputs=tuple(
            number[name] for name in structure.graph.outputs if name in number
        ),  # only computed values, not stored ones
        same_shape=rules.reuses,
        planned=rules.planned,
        derived=steps.derived,
    )


class _Values:
    """The arrays of all values of some steps. Values with equal layout, element type and axes share arrays."""

    def __init__(self, steps: Steps, grids: Grids, element_bytes: Mapping[str, int], rules: Rules) -> None:
        self._steps, self._grids, self._rules = steps, grids, rules
        self._element_bytes = {name: element_bytes.get(like, FLOAT_BYTES) for name, like in steps.typed_like.items()}
        self._numbers: dict[Key, int] = {}

    def terms(self) -> tuple[ValueTerm, ...]:
        """The term of each value, in the order of `Steps.layouts`."""
        known: dict[tuple[object, ...], ValueTerm] = {}
        found = []
        for name, layout in self._steps.layouts.items():
            of_kind = layout, self._element_bytes[name], self._steps.groups.get(name), self._steps.deciding.get(name)
            alike = (*of_kind, *self._steps.axes[name])
            if alike not in known:
                known[alike] = self._term(name)
            found.append(known[alike])
        return tuple(found)

    def _term(self, name: str) -> ValueTerm:
        axes, layout, bytes_ = self._steps.axes[name], self._steps.layouts[name], self._element_bytes[name]
        deciding = (self._steps.deciding[name],) if name in self._steps.deciding else axes[1:2]
        variables = self._grids.variables((*axes, *deciding))
        rows = [tuple(row) for row in self._grids.rows(axes, variables).tolist()]
        channels = [row[0] if row else 0 for row in self._grids.rows(deciding, variables).tolist()]
        pairs = list(zip(rows, channels, strict=True))
        shapes = [(bytes_, *laid_out(row, layout, self._rules, by)) for row, by in pairs]
        stored = [self._stored(name, row, by) for row, by in pairs]

        def table(found: Sequence[int]) -> np.ndarray:
            return np.asarray(found, np.int64).reshape(self._grids.shape(variables))

        return ValueTerm(
            variables=variables,
            bytes_=table([prod(key) for key in stored]),
            shapes=table([self._number(key) for key in shapes]),
            stored=table([self._number(key) for key in stored]),
            blocked=table([len(row) > 1 and in_blocks(by, layout, self._rules) for row, by in pairs]) > 0,
            temporary=name in self._steps.groups,
        )

    def _number(self, key: Key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _stored(self, name: str, shape: Sequence[int], deciding: int) -> Key:
        if name in self._steps.groups:
            groups = self._steps.groups[name]
            blocked = name in self._steps.deciding and in_blocks(deciding, read_as(groups), self._rules)
            return (0 if blocked else patches_bytes(shape, groups),)
        return self._element_bytes[name], *stored_shape(shape, self._steps.layouts[name], self._rules, deciding)
