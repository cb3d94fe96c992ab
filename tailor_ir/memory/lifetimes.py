"""Lifetimes of tensors for whole populations of SubNets at once, by one walk through the steps.

Sizes are gathered from tables over few variables; the SubNets that run a step are a mask over the population. A tensor may
take the memory of an earlier tensor of the same shape; shapes are compared by numbers. Nothing is built or run.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from solvers.schedules import ScheduledStep, Workload
from solvers.tables import Codes
from tailor_ir.memory.layouts import Event, Release, Request
from tailor_ir.memory.terms import MemoryTerms, StepTerm, ValueTerm
from tailor_ir.spaces.presence import Presence

Bytes = NDArray[np.int64]
Mask = bool | NDArray[np.bool_]  # set of SubNets; True: all, False: none
Holders = list[tuple[int, Mask]]  # values or tensors that hold a value, each in some SubNets
ReuseCandidates = dict[int, tuple[int, ...]]
CHUNK = 1024  # SubNets at once, so that their arrays stay in the cache


def in_parts(peaks: Callable[[Codes], Bytes], codes: Codes) -> Bytes:
    """Peaks (n,) of codes (n, V), computed in chunks."""
    parts = [peaks(codes[start : start + CHUNK]) for start in range(0, len(codes), CHUNK)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def reuse_candidates(terms: MemoryTerms) -> ReuseCandidates:
    """Value -> the earlier values that can, in some SubNet, have the same stored shape."""
    stored: dict[int, set[int]] = {}
    found: ReuseCandidates = {}
    for step in terms.steps:
        for value in step.writes:
            if terms.values[value].temporary:
                found[value] = ()
                continue
            own = set(np.unique(terms.values[value].stored).tolist())
            found[value] = tuple(other for other, shapes in stored.items() if not own.isdisjoint(shapes))
            # a tensor in the memory of an earlier one keeps its stored shape
            stored[value] = own.union(*(stored.get(other, set()) for other in step.in_place))
    return found


def _both(a: Mask, b: Mask) -> Mask:
    if a is False or b is False:
        return False
    if a is True:
        return b
    return a if b is True else a & b


def _either(a: Mask, b: Mask) -> Mask:
    if a is True or b is True:
        return True
    if a is False:
        return b
    return a if b is False else a | b


def _uniform(a: NDArray[np.bool_]) -> Mask:
    """The mask, simplified to True or False if it is equal for all SubNets."""
    if a.all():
        return True
    return a if a.any() else False


def _no(a: Mask) -> Mask:
    return not a if isinstance(a, bool) else ~a


@dataclass(slots=True)
class Walk:
    """One walk through the steps of n SubNets, canonical or not. candidates: result of `reuse_candidates`.

    origin: for each tensor and SubNet, the tensor that requested its memory; only `events` reads it.
    """

    terms: MemoryTerms
    candidates: ReuseCandidates
    codes: Codes
    gathered: dict[tuple[int, str], NDArray[np.int64]] = field(default_factory=dict)
    masks: dict[int, Mask] = field(default_factory=dict)  # by the identity of a presence of `terms`
    owners: dict[int, Holders] = field(default_factory=dict)  # value -> the tensors in which it is stored
    made: dict[int, Mask] = field(default_factory=dict)  # tensor -> the SubNets that have it
    first: list[int] = field(default_factory=list)  # per tensor, the earliest last read over all SubNets
    gone: set[int] = field(default_factory=set)  # tensors whose memory is reused in all SubNets
    last: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    taken: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    stored: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    origin: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def peaks(self) -> Bytes:
        """Peak sums of the bytes of tensors alive at once (n,), without the network's input."""
        changes = np.zeros((len(self.terms.steps) + 2, len(self.codes)), np.int64)
        for at, value, new in self._allocations():
            changes[at] += self._value(value, "bytes_") * new
        rows = np.arange(len(self.codes))
        for value, here in self.made.items():
            if here is not False:
                changes[self.last[value] + 1, rows] -= self._value(value, "bytes_") * ~self.taken[value]
        peaks: Bytes = np.cumsum(changes, axis=0).max(axis=0)
        return peaks

    def events(self) -> tuple[Event, ...]:
        """Requests and releases of memory of a single SubNet (n = 1), in order; without the network's input."""
        assert len(self.codes) == 1
        asked: dict[int, list[Event]] = {}
        for at, value, new in self._allocations():
            if new[0]:
                asked.setdefault(at, []).append(Request(value, int(self._value(value, "bytes_").reshape(-1)[0])))
        freed: dict[int, list[Event]] = {}
        for value, here in self.made.items():
            if here is not False and np.all(here) and not self.taken[value, 0]:
                freed.setdefault(int(self.last[value, 0]), []).append(Release(int(self.origin[value, 0])))
        moments = range(len(self.terms.steps) + 1)
        return tuple(event for at in moments for event in (*asked.get(at, ()), *freed.get(at, ())))

    def workload(self) -> tuple[list[int], Workload]:
        """The steps of a single SubNet (n = 1) that take memory: their positions, and a workload over tensors."""
        assert len(self.codes) == 1
        at, steps = [], []
        for position, (step, runs) in enumerate(zip(self.terms.steps, self._begin(), strict=True)):
            if np.all(runs) and not np.all(self._view(step)):
                at.append(position)
                steps.append(
                    ScheduledStep(
                        reads=tuple(tensor for value in step.reads for _, tensor in self._lying(value)),
                        writes=step.writes,
                        in_place=tuple(
                            tensor
                            for value in step.in_place
                            for source, tensor in self._lying(value)
                            if np.all(self._value(source, "shapes") == self._value(step.writes[0], "shapes"))
                        ),
                    )
                )
        tensors = range(len(self.terms.values))
        bytes_ = [int(self._value(tensor, "bytes_").reshape(-1)[0]) for tensor in tensors]
        return at, Workload(steps, tensors, bytes_, [t for value in self.terms.outputs for _, t in self._lying(value)])

    def _begin(self) -> list[Mask]:
        """Find the lifetimes; return the SubNets that run each step."""
        shape = len(self.terms.values), len(self.codes)
        self.last, self.taken, self.stored = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.empty(shape, int)
        self.origin = np.repeat(np.arange(shape[0])[:, None], shape[1], axis=1)
        present = [self._where(step.present) for step in self.terms.steps]
        self._lifetimes(present)
        return present

    def _lying(self, value: int) -> list[tuple[int, int]]:
        """For a single SubNet, pairs of a producer of a value and the tensor that stores it."""
        return [
            (source, tensor)
            for source, where in self._sources(value)
            for tensor, lies in self.owners.get(source, [])
            if np.all(_both(where, lies))
        ]

    def _allocations(self) -> Iterator[tuple[int, int, NDArray[np.bool_]]]:
        """Step, tensor, and the SubNets (n,) in which the tensor takes memory of its own, in the order of the steps."""
        present = self._begin()
        for at, (step, runs) in enumerate(zip(self.terms.steps, present, strict=True)):
            for position, value in enumerate(step.writes):
                here = _both(runs, self.made.get(value, False))
                if here is not False:
                    yield at, value, self._allocate(step, at, position, value, here)

    # -- gathering ---------------------------------------------------------------------------------------------------

    def _value(self, value: int, name: str) -> NDArray[np.int64]:
        """One of a value's arrays, evaluated for every SubNet: (n,) or ()."""
        term: ValueTerm = self.terms.values[value]
        key = id(term), name
        if key not in self.gathered:
            table = getattr(term, name)
            self.gathered[key] = table[tuple(self.codes[:, column] for column in term.variables)]
        return self.gathered[key]

    def _where(self, presence: Presence) -> Mask:
        if presence.always:
            return True
        if presence.never:
            return False
        if id(presence) not in self.masks:
            self.masks[id(presence)] = _uniform(presence.among(self.codes))
        return self.masks[id(presence)]

    def _sources(self, value: int) -> Holders:
        """The producers of a value, each with the SubNets in which it is chosen."""
        sources = self.terms.sources.get(value)
        return [(value, True)] if sources is None else [(source, self._where(where)) for source, where in sources]

    def _tensors(self, value: int, runs: Mask) -> Holders:
        """The tensors that store a value, each with the SubNets among `runs` in which it does."""
        return [
            (tensor, mask)
            for source, where in self._sources(value)
            for tensor, lies in self.owners.get(source, [])
            if (mask := _both(runs, _both(where, lies))) is not False
        ]

    # -- lifetimes ---------------------------------------------------------------------------------------------------

    def _lifetimes(self, present: list[Mask]) -> None:
        """Find the tensors that store each value, and the last read of each tensor."""
        for value in self.terms.inputs:
            self.owners[value] = [(value, True)]
        for at, (step, runs) in enumerate(zip(self.terms.steps, present, strict=True)):
            for value in step.reads:
                self._read(value, runs, at)
            view = self._view(step)
            shared = self._tensors(step.reads[0], view) if view is not False else []
            for value in step.writes:
                self.made[value] = made = _both(runs, _no(view))
                self.taken[value] = _no(made)  # an absent tensor has no memory to reuse
                self.owners[value] = [*shared, (value, _no(view))] if view is not True else shared
                self.last[value] = at
        for value in self.terms.outputs:
            self._read(value, True, len(self.terms.steps))
        self.first = self.last.min(axis=1).tolist()

    def _read(self, value: int, runs: Mask, at: int) -> None:
        for tensor, mask in self._tensors(value, runs):
            if mask is True:
                self.last[tensor] = at
            else:
                self.last[tensor][mask] = at

    def _view(self, step: StepTerm) -> Mask:
        """The SubNets in which the result of a step shares the memory of its operand."""
        if not step.relayout:
            return step.view
        (written,) = step.writes
        view: Mask = False
        for source, mask in self._sources(step.reads[0]):
            same = self._value(source, "blocked") == self._value(written, "blocked")
            view = _either(view, _both(mask, _uniform(same)))
        return view

    # -- memory ------------------------------------------------------------------------------------------------------

    def _allocate(self, step: StepTerm, at: int, position: int, value: int, here: Mask) -> NDArray[np.bool_]:
        """Let a tensor reuse the memory of an earlier one if possible; return the SubNets (n,) in which it takes new memory."""
        new = np.full(len(self.codes), here)
        self.stored[value] = self._value(value, "stored")
        if position == 0:
            for read in step.in_place:
                for source, where in self._sources(read):
                    for tensor, lies in self.owners.get(source, []):
                        if tensor in self.made:
                            same = self._value(source, "shapes") == self._value(value, "shapes")
                            fits = new & where & lies & same & (self.last[tensor] == at) & ~self.taken[tensor]
                            fits &= self._times_read(step, tensor) == 1
                            self._take(tensor, value, fits)
                            new &= ~fits
        if self.terms.same_shape:
            candidates = [t for t in self.candidates[value] if t not in self.gone and self.first[t] < at]
            if candidates:
                self._reuse(np.asarray(candidates), at, value, new)
        return new

    def _take(self, tensor: int, value: int, fits: NDArray[np.bool_]) -> None:
        """Reuse the memory of a tensor for a value in some SubNets."""
        self.taken[tensor] |= fits
        self.stored[value] = np.where(fits, self.stored[tensor], self.stored[value])
        self.origin[value] = np.where(fits, self.origin[tensor], self.origin[value])

    def _times_read(self, step: StepTerm, tensor: int) -> NDArray[np.int64]:
        """Number of operands of a step that are stored in a tensor, (n,)."""
        times = np.zeros(len(self.codes), np.int64)
        for read in step.reads:
            for lies_in, where in self._tensors(read, True):
                if lies_in == tensor:
                    times += where
        return times

    def _reuse(self, candidates: NDArray[np.int64], at: int, value: int, new: NDArray[np.bool_]) -> None:
        """Reuse the memory of the most recently freed tensor of the same stored shape."""
        wanted = new & (self.last[value] < len(self.terms.steps))
        last = self.last[candidates]
        fits = (
            ~self.taken[candidates] & (last < at) & (self.stored[candidates] == self._value(value, "stored")) & wanted
        )
        best = np.where(fits, last, -1)
        chosen = best.argmax(axis=0)
        rows = np.flatnonzero(fits.any(axis=0))
        over = candidates[chosen[rows]]
        self.taken[over, rows] = True
        self.origin[value, rows] = self.origin[over, rows]
        new[rows] = False
        self.gone.update(candidates[self.taken[candidates].all(axis=1)].tolist())
