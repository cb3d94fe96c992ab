"""Memory of a SubNet's activations, from sizes of axes and from when each tensor is written and read for the last time.

The steps (`steps`) are those of the largest network; a SubNet leaves out the ones of skipped blocks and what only these
needed, and readers of a skipped block's result read what the block would have read. Nothing is built or run. Two ways to
the same number: `peak_bytes` walks through the steps of one SubNet; `MemoryTerms` are the same steps with the sizes of
all SubNets as arrays over few variables, for whole populations.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tailor_ir.arena import Event, Release, Request, arena_peak
from tailor_ir.axes import Axis, Sizes
from tailor_ir.elastic import Elastic
from tailor_ir.grids import Grids, SkippedBy
from tailor_ir.lowering import sizes_of
from tailor_ir.steps import ONNXRUNTIME, Rules, Step, find_steps, in_blocks, laid_out, patches_bytes, stored_shape

FLOAT_BYTES = 4
Key = tuple[int, ...]  # bytes of an element, then the shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTerm:
    """A value over all choices of its `variables` (columns of choice indices), one axis of each array for each variable.

    bytes_: what it takes up. shapes: numbers that are equal for equal shapes, padding included. stored: the same of the
    shapes in which it is stored. blocked: whether its channels lie in blocks. temporary: it is there for one step only
    and shares its place with no other value.
    """

    variables: tuple[int, ...]
    bytes_: np.ndarray
    shapes: np.ndarray
    stored: np.ndarray
    blocked: np.ndarray
    temporary: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerm:
    """A step; reads, writes and in_place are positions in `MemoryTerms.values`. skipped: what leaves it out."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    in_place: tuple[int, ...]
    view: bool
    relayout: bool
    skipped: SkippedBy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """The steps of the largest network over all configs.

    aliases: exit of a block that can be skipped -> its entry, which readers of the exit read then, and what skips it.
    inputs, outputs: values of the network. same_shape: as `Rules.same_shape`.
    """

    values: tuple[ValueTerm, ...]
    steps: tuple[StepTerm, ...]
    aliases: Mapping[int, tuple[int, SkippedBy]]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    same_shape: bool


@dataclass(slots=True)
class _Tensor:
    """A tensor in the walk through one SubNet. place: the tensor that asked for the memory that it lies in.

    last: the step that reads it last.
    """

    place: str
    stored: Key
    last: int
    taken: bool = False  # another tensor lies in its place
    temporary: bool = False


class MemoryTable:
    """Lifetimes of the tensors of one SuperNet."""

    def __init__(self, elastic: Elastic, element_bytes: Mapping[str, int], rules: Rules = ONNXRUNTIME) -> None:
        """element_bytes: of values that are not float32."""
        self.space, self.rules = elastic.space, rules
        self._grids = Grids(self.space)
        graph, regions = elastic.graph, elastic.regions
        self._inputs, self._outputs = graph.inputs, graph.outputs
        blocks = regions.blocks
        block_of = {node.name: position for position, block in enumerate(blocks) for node in block.nodes}
        self._exits = [
            (blocks[position].exit, blocks[position].entry, position)
            for position in sorted(position for depth in self.space.depths for position in depth.blocks)
        ]
        aliases = {exit_: entry for exit_, entry, _ in self._exits}
        planned = find_steps(graph, elastic.axis_map.axes, block_of, aliases, self._sizes_of, rules)
        self.steps, self._forms, self._axes, self._groups = planned.steps, planned.forms, planned.axes, planned.groups
        self._element_bytes = {name: element_bytes.get(kind, FLOAT_BYTES) for name, kind in planned.kinds.items()}

    def _sizes_of(self, axis: Axis) -> frozenset[int]:
        return frozenset(self._grids.rows((axis,), self._grids.variables((axis,))).reshape(-1).tolist())

    # -- one SubNet --------------------------------------------------------------------------------------------------

    def peak_bytes(self, codes: np.ndarray) -> int:
        """Largest sum of the tensors that are alive at once, batch 1; without the network's input."""
        alive: dict[Hashable, int] = {}
        peak = 0
        for event in self.events(codes):
            if isinstance(event, Request):
                alive[event.tensor] = event.bytes_
                peak = max(peak, sum(alive.values()))
            else:
                del alive[event.tensor]
        return peak

    def arena_bytes(self, codes: np.ndarray) -> int:
        """What onnxruntime's arena has in use at most for the same tensors, in a first run (`arena`)."""
        return arena_peak(self.events(codes))

    def events(self, codes: np.ndarray) -> tuple[Event, ...]:
        """What one SubNet asks the allocator for and gives back, in order, batch 1; without the network's input."""
        skipped = self.space.skipped_blocks(codes)
        sizes = sizes_of(self.space, codes)
        alias: dict[str, str] = {}
        for exit_, entry, position in self._exits:
            if position in skipped:
                alias[exit_] = alias.get(entry, entry)
        steps = self._needed(skipped, alias)
        owner, last = self._lifetimes(steps, alias, sizes)
        tensors, new = self._walk(steps, alias, owner, last, sizes)
        freed: dict[int, list[Event]] = {}
        for tensor in tensors.values():
            if not tensor.taken:
                freed.setdefault(tensor.last, []).append(Release(tensor.place))
        return tuple(event for at in range(len(steps) + 1) for event in (*new.get(at, ()), *freed.get(at, ())))

    def _needed(self, skipped: frozenset[int], alias: Mapping[str, str]) -> list[Step]:
        read = {alias.get(name, name) for name in self._outputs}
        steps: list[Step] = []
        for step in reversed(self.steps):
            if step.block not in skipped and not read.isdisjoint(step.writes):
                steps.append(step)
                read.update(alias.get(name, name) for name in step.reads)
        steps.reverse()
        return steps

    def _is_view(self, step: Step, alias: Mapping[str, str], sizes: Sizes) -> bool:
        if not step.relayout:
            return step.view
        source = alias.get(step.reads[0], step.reads[0])
        return self._in_blocks(source, sizes) == self._in_blocks(step.writes[0], sizes)

    def _in_blocks(self, name: str, sizes: Sizes) -> bool:
        axes = self._axes[name]
        return len(axes) > 1 and in_blocks(sizes(axes[1]), self._forms[name], self.rules)

    def _lifetimes(
        self, steps: Sequence[Step], alias: Mapping[str, str], sizes: Sizes
    ) -> tuple[dict[str, str], dict[str, int]]:
        """Value -> the tensor that it lies in, and tensor -> the step that reads it last."""
        owner: dict[str, str] = {}
        last: dict[str, int] = {}
        for at, step in enumerate(steps):
            read = [owner.get(source, source) for source in (alias.get(name, name) for name in step.reads)]
            last.update((tensor, at) for tensor in read)
            if self._is_view(step, alias, sizes):
                owner[step.writes[0]] = read[0]
            last.update((name, at) for name in step.writes if name not in owner)
        for name in self._outputs:
            source = alias.get(name, name)
            last[owner.get(source, source)] = len(steps)
        return owner, last

    def _walk(
        self,
        steps: Sequence[Step],
        alias: Mapping[str, str],
        owner: Mapping[str, str],
        last: Mapping[str, int],
        sizes: Sizes,
    ) -> tuple[dict[str, _Tensor], dict[int, list[Event]]]:
        """All tensors, and the requests of each step."""
        tensors: dict[str, _Tensor] = {}
        new: dict[int, list[Event]] = {}
        for at, step in enumerate(steps):
            for position, name in enumerate(step.writes):
                if name in owner:
                    continue
                key = self._stored(name, sizes)
                temporary = name in self._groups
                before = None
                if position == 0:
                    before = self._overwritten(name, step, at, alias, owner, tensors, sizes)
                if before is None and self.rules.same_shape and last[name] < len(steps) and not temporary:
                    fits = [t for t in tensors.values() if t.stored == key and t.last < at]
                    free = [t for t in fits if not t.taken and not t.temporary]
                    before = max(free, key=lambda t: t.last, default=None)
                place = name
                if before is None:
                    new.setdefault(at, []).append(Request(name, prod(key)))
                else:
                    before.taken, key, place = True, before.stored, before.place
                tensors[name] = _Tensor(place, key, last[name], temporary=temporary)
        return tensors, new

    def _overwritten(
        self,
        name: str,
        step: Step,
        at: int,
        alias: Mapping[str, str],
        owner: Mapping[str, str],
        tensors: Mapping[str, _Tensor],
        sizes: Sizes,
    ) -> _Tensor | None:
        """The tensor that the step may write its result over: one that it reads once, and nobody after it."""
        lies_in = [owner.get(source, source) for source in (alias.get(name, name) for name in step.reads)]
        for read in step.in_place:
            source = alias.get(read, read)
            place = owner.get(source, source)
            tensor = tensors.get(place)
            free = tensor is not None and tensor.last == at and not tensor.taken and lies_in.count(place) == 1
            if free and self._shape(source, sizes) == self._shape(name, sizes):
                return tensor
        return None

    def _shape(self, name: str, sizes: Sizes) -> Key:
        shape = sizes.shape(self._axes[name])
        return self._element_bytes[name], *laid_out(shape, self._forms[name], self.rules)

    def _stored(self, name: str, sizes: Sizes) -> Key:
        return self._stored_key(name, sizes.shape(self._axes[name]))

    def _stored_key(self, name: str, shape: Sequence[int]) -> Key:
        if name in self._groups:
            return (patches_bytes(shape, self._groups[name]),)
        return self._element_bytes[name], *stored_shape(shape, self._forms[name], self.rules)

    # -- all SubNets -------------------------------------------------------------------------------------------------

    def terms(self) -> MemoryTerms:
        """The steps with the sizes of all SubNets."""
        number = {name: at for at, name in enumerate(self._forms)}
        numbers: dict[Key, int] = {}
        known: dict[tuple[object, ...], ValueTerm] = {}
        values = []
        for name, form in self._forms.items():
            alike = (form, self._element_bytes[name], self._groups.get(name), *self._axes[name])
            if alike not in known:
                known[alike] = self._value_term(name, numbers)
            values.append(known[alike])
        return MemoryTerms(
            values=tuple(values),
            steps=tuple(
                StepTerm(
                    reads=tuple(number[name] for name in step.reads),
                    writes=tuple(number[name] for name in step.writes),
                    in_place=tuple(number[name] for name in step.in_place),
                    view=step.view,
                    relayout=step.relayout,
                    skipped=self._grids.skipped_by(step.block),
                )
                for step in self.steps
            ),
            aliases={
                number[exit_]: (number[entry], skipped)
                for exit_, entry, position in self._exits
                if (skipped := self._grids.skipped_by(position)) is not None
            },
            inputs=tuple(number[name] for name in self._inputs),
            outputs=tuple(number[name] for name in self._outputs),
            same_shape=self.rules.same_shape,
        )

    def _value_term(self, name: str, numbers: dict[Key, int]) -> ValueTerm:
        axes, form, bytes_ = self._axes[name], self._forms[name], self._element_bytes[name]
        variables = self._grids.variables(axes)
        rows = [tuple(row) for row in self._grids.rows(axes, variables).tolist()]
        shapes = [(bytes_, *laid_out(row, form, self.rules)) for row in rows]
        stored = [self._stored_key(name, row) for row in rows]

        def table(found: Sequence[int]) -> np.ndarray:
            return np.asarray(found, np.int64).reshape(self._grids.shape(variables))

        return ValueTerm(
            variables=variables,
            bytes_=table([prod(key) for key in stored]),
            shapes=table([numbers.setdefault(key, len(numbers)) for key in shapes]),
            stored=table([numbers.setdefault(key, len(numbers)) for key in stored]),
            blocked=table([len(row) > 1 and in_blocks(row[1], form, self.rules) for row in rows]) > 0,
            temporary=name in self._groups,
        )
