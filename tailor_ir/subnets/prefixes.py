"""SubNets run together: the first instructions that several SubNets have in common are run once.

The instructions of the SubNets form a tree of common prefixes. The tree is walked depth first for each batch. When SubNets
diverge, the values that they still need are kept, as far as a limit allows; otherwise the values are computed again. An
instruction is the same whether a SubNet runs alone or among others, so every output is the same to the last digit. Source:
AdaptiveNet (MobiCom 2023) §5.2.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from tailor_ir.graph import GivenInputs, Tensors
from tailor_ir.spaces.selectors import Config
from tailor_ir.subnets.batch_norms import ElasticBatchNorm, Moments, Statistics, statistics_of
from tailor_ir.subnets.elastic import Elastic
from tailor_ir.subnets.plans import Instruction

Applied = tuple[Instruction, "_Given | None"]
"""An instruction; for a norm with the SubNet's own statistics, also these."""


class _Given:
    """Statistics of one norm. Equal statistics are one object."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: Statistics) -> None:
        self.tensors = tensors


class _Member(NamedTuple):
    """A SubNet of the tree: its instructions, and its requested outputs."""

    position: int
    instructions: tuple[Applied, ...]
    outputs: tuple[str, ...]


@dataclass(slots=True)
class _SharedInstruction:
    """An instruction that SubNets share. released: values that none of these SubNets needs afterwards."""

    instruction: Instruction
    given: _Given | None
    released: tuple[str, ...]
    moments: Moments | None = None


class _Branch(NamedTuple):
    """Instructions that the same SubNets share, and the branches that follow; the branch with most SubNets comes last.

    `needed`: values before the first instruction. `ends`: SubNets without a further instruction, with their outputs.
    """

    instructions: tuple[_SharedInstruction, ...]
    branches: tuple["_Branch", ...]
    ends: tuple[tuple[int, tuple[str, ...]], ...]
    needed: frozenset[str]
    size: int


def _grow(subnets: Sequence[_Member], start: int = 0) -> _Branch:
    """The tree of SubNets whose first `start` instructions are equal."""
    first = subnets[0].instructions
    stop = min(_common(first, other.instructions, start) for other in subnets)
    following: dict[Applied, list[_Member]] = {}
    for subnet in subnets:
        if len(subnet.instructions) > stop:
            following.setdefault(subnet.instructions[stop], []).append(subnet)
    branches = tuple(sorted((_grow(some, stop) for some in following.values()), key=lambda branch: branch.size))
    ends = tuple((subnet.position, subnet.outputs) for subnet in subnets if len(subnet.instructions) == stop)
    needed = {name for branch in branches for name in branch.needed}.union(*(outputs for _, outputs in ends))
    instructions = []
    for instruction, given in reversed(first[start:stop]):
        stored = {name for name, _ in instruction.cuts}
        values = [name for name in dict.fromkeys((*instruction.operands, *instruction.outputs)) if name not in stored]
        instructions.append(
            _SharedInstruction(instruction, given, tuple([name for name in values if name not in needed]))
        )
        needed = needed.union(values).difference(instruction.outputs)
    return _Branch(tuple(reversed(instructions)), branches, ends, frozenset(needed), len(subnets))


def _common(a: Sequence[Any], b: Sequence[Any], start: int = 0) -> int:
    """Number of equal entries from the first on. Entries before `start` are known to be equal."""
    stop = min(len(a), len(b))
    return next((index for index in range(start, stop) if a[index] != b[index]), stop)


@dataclass(slots=True)
class _Kept:
    """Values at a branching point. users: branches from here that are still to be run."""

    values: Tensors
    users: int


class _Todo(NamedTuple):
    """Branches to run one after the other, starting from kept values; or only the last of them, starting from `values`."""

    base: _Kept
    path: tuple[_Branch, ...]
    values: Tensors | None


class _Ledger:
    """The bytes of all kept values. Shared storage counts once, the network's own storage never."""

    def __init__(self, limit: float, others: Iterable[torch.Tensor]) -> None:
        self.limit = limit
        self.bytes = self.peak_bytes = 0
        self._others = {tensor.untyped_storage().data_ptr() for tensor in others}
        self._users: dict[int, int] = {}

    def exchange(self, old: _Kept, new: _Kept) -> bool:
        """Keep `new`, and drop `old` if it has no other user. Beyond the limit, change nothing and return False."""
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
        """Remove one user. Values without users are dropped."""
        kept.users -= 1
        if not kept.users:
            self._change(kept.values, -1)

    def _change(self, values: Tensors, users: int) -> None:
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

    kept_mib: limit of the values that are kept for later SubNets [MiB], in addition to the memory that one SubNet needs to run;
    several threads have this limit each. Neither the network nor its active SubNet is changed.
    """

    def __init__(self, elastic: Elastic, configs: Sequence[Config], kept_mib: float = 1024) -> None:
        self._elastic = elastic
        self._programs = [elastic.program(config) for config in configs]
        self._limit = kept_mib * 2**20
        self._tree: _Branch | None = None
        self.peak_bytes = 0
        """Peak bytes of kept values so far."""

    @torch.no_grad()
    def observe(self, batches: Iterable[GivenInputs]) -> list[Statistics]:
        """BatchNorm statistics of each SubNet, in order, as `SuperNet.recalibrate` takes them.

        SubNets with equal tensors share them. Without BatchNorm no batch is read.
        """
        subnets = []
        for position, program in enumerate(self._programs):
            norms = [
                index for index, each in enumerate(program.instructions) if isinstance(each.module, ElasticBatchNorm)
            ]
            instructions = tuple([(each, None) for each in program.instructions[: norms[-1] + 1 if norms else 0]])
            subnets.append(_Member(position, instructions, ()))
        if not any(subnet.instructions for subnet in subnets):
            return [{} for _ in subnets]
        tree = _grow(subnets)
        for number, x in enumerate(batches, start=1):
            for _ in self._walk(tree, x, partial(self._observed, batch=number)):
                pass
        found: list[Statistics] = [{} for _ in subnets]
        for position, moments in _paths(tree):
            found[position] = statistics_of(moments)
        return found

    def activate(self, statistics: Sequence[Statistics] | None = None) -> None:
        """Choose the BatchNorm statistics of each SubNet for the next calls; None: the stored ones."""
        known: dict[Any, _Given] = {}
        subnets = []
        for position, (program, own) in enumerate(
            zip(self._programs, statistics or [{}] * len(self._programs), strict=True)
        ):
            instructions = tuple([(each, _given(each, own, known)) for each in program.instructions])
            subnets.append(_Member(position, instructions, program.outputs))
        self._tree = _grow(subnets)

    @torch.no_grad()
    def __call__(self, x: GivenInputs) -> Iterator[tuple[int, Any]]:
        """Position and output of each SubNet for one batch, in the order of the tree."""
        if self._tree is None:
            self.activate()
        assert self._tree is not None
        for (position, names), values in self._walk(self._tree, x, self._evaluated):
            outputs = tuple([values[name] for name in names])
            yield position, outputs[0] if len(outputs) == 1 else outputs

    def _walk(
        self, tree: _Branch, x: GivenInputs, compute: Callable[[_SharedInstruction, Tensors], Any]
    ) -> Iterator[tuple[tuple[int, tuple[str, ...]], Tensors]]:
        """Run the tree depth first; yield the end of each SubNet with the values at that point."""
        inputs = self._elastic.structure.graph.named_inputs(x)
        ledger = _Ledger(self._limit, (*inputs.values(), *self._elastic.parameters(), *self._elastic.buffers()))
        todo: list[_Todo] = [_Todo(_Kept(inputs, 1), (tree,), None)]
        while todo:
            base, path, values = todo.pop()
            for branch in path if values is None else path[-1:]:
                values = _only(branch.needed, base.values if values is None else values)
                for shared in branch.instructions:
                    _store(values, shared, compute(shared, values))
            assert values is not None
            for end in path[-1].ends:
                yield end, values
            todo += _after(path, base, values, ledger)
            self.peak_bytes = max(self.peak_bytes, ledger.peak_bytes)

    def _operands(self, instruction: Instruction, values: Tensors, given: Statistics) -> list[torch.Tensor]:
        stored = {name: given[name] if name in given else self._cut(name, cut) for name, cut in instruction.cuts}
        return [stored[name] if name in stored else values[name] for name in instruction.operands]

    def _cut(self, name: str, cut: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        tensor = self._elastic.tensor(name)
        return tensor if cut is None else cut(tensor)

    def _evaluated(self, shared: _SharedInstruction, values: Tensors) -> Any:
        instruction, given = shared.instruction, shared.given
        operands = self._operands(instruction, values, given.tensors if given is not None else {})
        module = instruction.module
        return module.by_statistics(*operands) if isinstance(module, ElasticBatchNorm) else module(*operands)

    def _observed(self, shared: _SharedInstruction, values: Tensors, batch: int) -> Any:
        operands = self._operands(shared.instruction, values, {})
        module = shared.instruction.module
        if not isinstance(module, ElasticBatchNorm):
            return module(*operands)
        x, scale, bias, *_ = operands
        if shared.moments is None:
            shared.moments = module.start(scale)
        if shared.moments.batches == batch:  # the instruction was run again for this batch
            return module.by_batch(x, scale, bias)
        return module.observe(x, scale, bias, shared.moments)


def _after(path: tuple[_Branch, ...], base: _Kept, values: Tensors, ledger: _Ledger) -> list[_Todo]:
    """Tasks after a path of branches from `base` that gave `values`. The last task is run first."""
    branches = path[-1].branches
    if not branches:
        ledger.leave(base)
        return []
    kept = _Kept(_only({name for branch in branches for name in branch.needed}, values), len(branches))
    if ledger.exchange(base, kept):
        return [_Todo(kept, (branch,), None) for branch in reversed(branches)]
    base.users += len(branches) - 1
    again = [_Todo(base, (*path, branch), None) for branch in reversed(branches[1:])]
    return [*again, _Todo(base, (*path, branches[0]), values)]


def _only(names: Iterable[str], values: Tensors) -> Tensors:
    return {name: values[name] for name in names}


def _store(values: Tensors, shared: _SharedInstruction, result: Any) -> None:
    outputs = shared.instruction.outputs
    if len(outputs) == 1:
        values[outputs[0]] = result
    else:
        values.update(zip(outputs, result, strict=True))
    for name in shared.released:
        del values[name]


def _given(instruction: Instruction, statistics: Statistics, known: dict[Any, _Given]) -> _Given | None:
    """The statistics of a norm, taken from those of a SubNet; None for other instructions."""
    module = instruction.module
    if not isinstance(module, ElasticBatchNorm) or module.mean_name not in statistics:
        return None
    own = {name: statistics[name] for name in (module.mean_name, module.variance_name)}
    same = (module, *(id(tensor) for tensor in own.values()))
    if same not in known:
        content = (module, *(tensor.cpu().view(torch.uint8).numpy().tobytes() for tensor in own.values()))
        known[same] = known.setdefault(content, _Given(own))
    return known[same]


def _paths(tree: _Branch) -> Iterator[tuple[int, list[tuple[ElasticBatchNorm, Moments]]]]:
    """Position of each SubNet, with the observations of its norms in order."""
    todo: list[tuple[_Branch, list[tuple[ElasticBatchNorm, Moments]]]] = [(tree, [])]
    while todo:
        branch, before = todo.pop()
        own = [
            (shared.instruction.module, shared.moments)
            for shared in branch.instructions
            if isinstance(shared.instruction.module, ElasticBatchNorm) and shared.moments is not None
        ]
        found = before + own
        yield from ((position, found) for position, _ in branch.ends)
        todo.extend((each, found) for each in branch.branches)


def groups(elastic: Elastic, configs: Sequence[Config], most: int) -> list[list[int]]:
    """Positions of SubNets, in groups to run together: at most `most` per group, which have much in common.

    SubNets of one group have the same resolution and at least their first instruction in common. Long rows of similar SubNets
    are split where neighbours share least.
    """
    numbers: dict[Any, int] = {}
    rows: list[tuple[tuple[int, ...], int]] = []
    codes = elastic.structure.space.encode(configs)
    for position in sorted(range(len(configs)), key=lambda index: codes[index].tolist()):
        resolution = numbers.setdefault(elastic.structure.space.spatial(codes[position]), len(numbers))
        instructions = elastic.program(configs[position]).instructions
        rows.append(((resolution, *(numbers.setdefault(each, len(numbers)) for each in instructions)), position))
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
