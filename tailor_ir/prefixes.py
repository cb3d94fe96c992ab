"""SubNets run together: what several of them have in common, from the input up to some step, is computed once.

Their steps form a tree of common prefixes. It is walked depth-first for each batch; where SubNets part, the values that
they still need are kept, as far as a limit allows, and otherwise computed again. Every step is what a SubNet runs on its
own, so every output is the same to the last digit. Source: AdaptiveNet (MobiCom 2023) §5.2.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from tailor_ir.batch_norms import ElasticBatchNorm, Moments, Statistics, statistics_of
from tailor_ir.elastic import Elastic, Step
from tailor_ir.space import Choice

Config = Mapping[str, Choice]
Values = dict[str, torch.Tensor]
Unit = tuple[Step, "_Given | None"]


class _Given:
    """Statistics of one norm; where they are equal, it is the same object."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: Statistics) -> None:
        self.tensors = tensors


class _Subnet(NamedTuple):
    """What is to be run of one SubNet, and the values that are asked for in the end."""

    position: int
    units: tuple[Unit, ...]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class _Place:
    """A step in the tree; `released`: values that no SubNet here needs afterwards."""

    step: Step
    given: _Given | None
    released: tuple[str, ...]
    moments: Moments | None = None


class _Run(NamedTuple):
    """Steps that the same SubNets have in common, and where these go on; the run with most SubNets comes last.

    `needed`: values before the first step. `ends`: SubNets that have no further step, with their outputs.
    """

    places: tuple[_Place, ...]
    runs: tuple["_Run", ...]
    ends: tuple[tuple[int, tuple[str, ...]], ...]
    needed: frozenset[str]
    size: int


def _grow(subnets: Sequence[_Subnet], start: int = 0) -> _Run:
    """The tree of SubNets whose first `start` units are equal."""
    units = subnets[0].units
    stop = min(_common(units, other.units, start) for other in subnets)
    following: dict[Unit, list[_Subnet]] = {}
    for subnet in subnets:
        if len(subnet.units) > stop:
            following.setdefault(subnet.units[stop], []).append(subnet)
    runs = tuple(sorted((_grow(some, stop) for some in following.values()), key=lambda run: run.size))
    ends = tuple((subnet.position, subnet.outputs) for subnet in subnets if len(subnet.units) == stop)
    needed = {name for run in runs for name in run.needed}.union(*(outputs for _, outputs in ends))
    places = []
    for step, given in reversed(units[start:stop]):
        stored = {name for name, _ in step.cuts}
        values = [name for name in dict.fromkeys((*step.operands, *step.outputs)) if name not in stored]
        places.append(_Place(step, given, tuple([name for name in values if name not in needed])))
        needed = needed.union(values).difference(step.outputs)
    return _Run(tuple(reversed(places)), runs, ends, frozenset(needed), len(subnets))


def _common(a: Sequence[Any], b: Sequence[Any], start: int = 0) -> int:
    """How many entries are equal from the first on; those before `start` are known to be."""
    stop = min(len(a), len(b))
    return next((index for index in range(start, stop) if a[index] != b[index]), stop)


@dataclass(slots=True)
class _Kept:
    """Values at a place where SubNets part, and how many of these are still to come."""

    values: Values
    users: int


class _Todo(NamedTuple):
    """Runs to be done one after the other from values that are kept; or the last of them from `values` at hand."""

    base: _Kept
    path: tuple[_Run, ...]
    values: Values | None


class _Ledger:
    """The bytes of all values that are kept; storage that several have counts once, the network's own never."""

    def __init__(self, limit: float, others: Iterable[torch.Tensor]) -> None:
        self.limit = limit
        self.bytes = self.peak_bytes = 0
        self._others = {tensor.untyped_storage().data_ptr() for tensor in others}
        self._users: dict[int, int] = {}

    def exchange(self, old: _Kept, new: _Kept) -> bool:
        """Keep `new`, instead of `old` if that has no other user; whether this is within the limit."""
        last = old.users == 1
        if last:
            self._change(old.values, -1)
        self._change(new.values, 1)
        if self.bytes > self.limit:
            self._change(new.values, -1)
            if last:
                self._change(old.values, 1)
            return False
        old.users -= 1
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        return True

    def leave(self, kept: _Kept) -> None:
        """One user less; what has none is not kept any more."""
        kept.users -= 1
        if not kept.users:
            self._change(kept.values, -1)

    def _change(self, values: Values, users: int) -> None:
        for storage in {id(s): s for s in (value.untyped_storage() for value in values.values())}.values():
            place = storage.data_ptr()
            if place in self._others:
                continue
            before = self._users.get(place, 0)
            self._users[place] = before + users
            if not before or not self._users[place]:
                self.bytes += users * storage.nbytes()
            if not self._users[place]:
                del self._users[place]


class Prefixes:
    """Several SubNets of one resolution, run together.

    kept_mib: what values for SubNets that come later may take up, beside what a single SubNet needs to run; in each of
    several threads that run different ones at a time. Nothing of the network is written, nor its active SubNet changed.
    """

    def __init__(self, elastic: Elastic, configs: Sequence[Config], kept_mib: float = 1024) -> None:
        self._elastic = elastic
        self._programs = [elastic.program(config) for config in configs]
        self._limit = kept_mib * 2**20
        self._tree: _Run | None = None
        self.peak_bytes = 0
        """What was kept at most at once so far."""

    @torch.no_grad()
    def observe(self, batches: Iterable[torch.Tensor]) -> list[Statistics]:
        """BatchNorm statistics of each SubNet, in order, as `SuperNet.recalibrate` takes them.

        SubNets share the tensors that are equal. Without BatchNorm no batch is read.
        """
        subnets = []
        for position, program in enumerate(self._programs):
            norms = [index for index, step in enumerate(program.steps) if isinstance(step.module, ElasticBatchNorm)]
            units = tuple([(step, None) for step in program.steps[: norms[-1] + 1 if norms else 0]])
            subnets.append(_Subnet(position, units, ()))
        if not any(subnet.units for subnet in subnets):
            return [{} for _ in subnets]
        tree = _grow(subnets)
        for number, x in enumerate(batches, start=1):
            for _ in self._walk(tree, x, partial(self._observed, batch=number)):
                pass
        found: list[Statistics] = [{} for _ in subnets]
        for position, places in _paths(tree):
            found[position] = statistics_of(places)
        return found

    def activate(self, statistics: Sequence[Statistics] | None = None) -> None:
        """Choose the BatchNorm statistics of each SubNet for the next calls; None: the stored ones."""
        known: dict[Any, _Given] = {}
        subnets = []
        for position, (program, own) in enumerate(
            zip(self._programs, statistics or [{}] * len(self._programs), strict=True)
        ):
            units = tuple([(step, _given(step, own, known)) for step in program.steps])
            subnets.append(_Subnet(position, units, program.outputs))
        self._tree = _grow(subnets)

    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> Iterator[tuple[int, Any]]:
        """Position and output of each SubNet for one batch, in the order in which they come."""
        if self._tree is None:
            self.activate()
        assert self._tree is not None
        for (position, names), values in self._walk(self._tree, x, self._evaluated):
            outputs = tuple([values[name] for name in names])
            yield position, outputs[0] if len(outputs) == 1 else outputs

    def _walk(
        self, tree: _Run, x: torch.Tensor, compute: Callable[[_Place, Values], Any]
    ) -> Iterator[tuple[tuple[int, tuple[str, ...]], Values]]:
        """Run the tree depth-first; each SubNet's end with the values there."""
        ledger = _Ledger(self._limit, (x, *self._elastic.parameters(), *self._elastic.buffers()))
        todo: list[_Todo] = [_Todo(_Kept({self._elastic.graph.inputs[0]: x}, 1), (tree,), None)]
        while todo:
            base, path, values = todo.pop()
            for run in path if values is None else path[-1:]:
                values = _only(run.needed, base.values if values is None else values)
                for place in run.places:
                    _store(values, place, compute(place, values))
            assert values is not None
            for end in path[-1].ends:
                yield end, values
            todo += _after(path, base, values, ledger)
            self.peak_bytes = max(self.peak_bytes, ledger.peak_bytes)

    def _operands(self, step: Step, values: Values, given: Statistics) -> list[torch.Tensor]:
        stored = {name: given[name] if name in given else self._cut(name, cut) for name, cut in step.cuts}
        return [stored[name] if name in stored else values[name] for name in step.operands]

    def _cut(self, name: str, cut: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        tensor = self._elastic.tensor(name)
        return tensor if cut is None else cut(tensor)

    def _evaluated(self, place: _Place, values: Values) -> Any:
        step, given = place.step, place.given
        operands = self._operands(step, values, given.tensors if given is not None else {})
        module = step.module
        return module.by_statistics(*operands) if isinstance(module, ElasticBatchNorm) else module(*operands)

    def _observed(self, place: _Place, values: Values, batch: int) -> Any:
        operands = self._operands(place.step, values, {})
        module = place.step.module
        if not isinstance(module, ElasticBatchNorm):
            return module(*operands)
        x, scale, bias, *_ = operands
        if place.moments is None:
            place.moments = module.start(scale)
        if place.moments.batches == batch:  # computed again
            return module.by_batch(x, scale, bias)
        return module.observe(x, scale, bias, place.moments)


def _after(path: tuple[_Run, ...], base: _Kept, values: Values, ledger: _Ledger) -> list[_Todo]:
    """What is to be done after some runs, from `base`, that gave `values`; last comes what is to be done first."""
    runs = path[-1].runs
    if not runs:
        ledger.leave(base)
        return []
    kept = _Kept(_only({name for run in runs for name in run.needed}, values), len(runs))
    if ledger.exchange(base, kept):
        return [_Todo(kept, (run,), None) for run in reversed(runs)]
    base.users += len(runs) - 1
    again = [_Todo(base, (*path, run), None) for run in reversed(runs[1:])]
    return [*again, _Todo(base, (*path, runs[0]), values)]


def _only(names: Iterable[str], values: Values) -> Values:
    return {name: values[name] for name in names}


def _store(values: Values, place: _Place, result: Any) -> None:
    outputs = place.step.outputs
    if len(outputs) == 1:
        values[outputs[0]] = result
    else:
        values.update(zip(outputs, result, strict=True))
    for name in place.released:
        del values[name]


def _given(step: Step, statistics: Statistics, known: dict[Any, _Given]) -> _Given | None:
    """The statistics of a norm among those of a SubNet."""
    module = step.module
    if not isinstance(module, ElasticBatchNorm) or module.mean_name not in statistics:
        return None
    own = {name: statistics[name] for name in (module.mean_name, module.variance_name)}
    same = (module, *(id(tensor) for tensor in own.values()))
    if same not in known:
        content = (module, *(tensor.cpu().view(torch.uint8).numpy().tobytes() for tensor in own.values()))
        known[same] = known.setdefault(content, _Given(own))
    return known[same]


def _paths(tree: _Run) -> Iterator[tuple[int, list[tuple[ElasticBatchNorm, Moments]]]]:
    """Position of each SubNet, with what its norms have observed, in order."""
    todo: list[tuple[_Run, list[tuple[ElasticBatchNorm, Moments]]]] = [(tree, [])]
    while todo:
        run, before = todo.pop()
        own = [
            (place.step.module, place.moments)
            for place in run.places
            if isinstance(place.step.module, ElasticBatchNorm) and place.moments is not None
        ]
        found = before + own
        yield from ((position, found) for position, _ in run.ends)
        todo.extend((each, found) for each in run.runs)


def groups(elastic: Elastic, configs: Sequence[Config], most: int) -> list[list[int]]:
    """Positions of SubNets, in groups to be run together: at most `most` that have much in common.

    SubNets of one group have the same resolution and at least their first step in common. Long rows of similar SubNets
    are parted where neighbours share least.
    """
    numbers: dict[Any, int] = {}
    rows: list[tuple[tuple[int, ...], int]] = []
    codes = elastic.space.encode(configs)
    for position in sorted(range(len(configs)), key=lambda index: codes[index].tolist()):
        place = numbers.setdefault(elastic.space.spatial(codes[position]), len(numbers))
        steps = elastic.program(configs[position]).steps
        rows.append(((place, *(numbers.setdefault(step, len(numbers)) for step in steps)), position))
    rows.sort()
    common = [_common(before[0], row[0]) for before, row in pairwise(rows)]
    found, todo = [], [(0, len(rows))]
    while todo:
        first, stop = todo.pop()
        if stop - first < 1:
            continue
        size = stop - first
        inner = range(first + 1, stop) if size <= most else range(first + max(1, size // 4), stop - size // 4)
        weakest = min(inner, key=lambda index: common[index - 1], default=stop)
        if size <= most and (weakest == stop or common[weakest - 1] > 1):
            found.append([position for _, position in rows[first:stop]])
        else:
            todo += [(weakest, stop), (first, weakest)]
    return found
