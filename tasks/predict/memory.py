"""Memory of any SubNet, for whole populations: parameters and the peak of its activations by tensor lifetime.

The same walk as `tailor_ir.lifetimes`, through all SubNets at once. Sizes are gathered from tables over few variables;
what depends on which blocks are skipped is a mask over the population; where a tensor takes the place of another one of
the same shape, the shapes' numbers are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tailor_ir import SuperNet
from tailor_ir.lifetimes import MemoryTerms, StepTerm, ValueTerm
from tailor_ir.steps import ONNXRUNTIME, Rules
from tasks.predict.counts import parameter_sums
from tasks.predict.sums import Sums

Codes = NDArray[np.int64]
Values = NDArray[np.float64]
Bytes = NDArray[np.int64]
Mask = bool | NDArray[np.bool_]  # which SubNets; True and False for all and none
Places = list[tuple[int, Mask]]  # values or tensors, each for some SubNets

MIB = 2**20
FLOAT_BYTES = 4
CHUNK = 1024  # SubNets at once: their arrays stay in the cache


class MemoryPredictor:
    """Predicts memory [MiB] of codes (n, V), batch 1, weights and activations in fp32."""

    def __init__(self, terms: MemoryTerms, parameters: Sums, arena_bytes: Callable[[Codes], int]) -> None:
        """arena_bytes: of the code (V,) of one SubNet."""
        self.terms, self.parameters, self._arena_bytes = terms, parameters, arena_bytes
        self._candidates = _candidates(terms)

    @classmethod
    def compile(cls, net: SuperNet, rules: Rules = ONNXRUNTIME) -> "MemoryPredictor":
        """Arrays from the lifetimes and operators of a SuperNet."""

        def arena_bytes(code: Codes) -> int:
            return net.peak_arena_bytes(net.space.decode(code), rules)

        return cls(net.memory_terms(rules), parameter_sums(net), arena_bytes)

    def predict(self, codes: Codes) -> Values:
        """Parameters and peak activations (n,) [MiB]."""
        total: Values = (self.parameters.predict(codes) * FLOAT_BYTES + self.peak_bytes(codes)) / MIB
        return total

    def peak_bytes(self, codes: Codes) -> Bytes:
        """What the activations take up at most at once (n,), without the network's input."""
        codes = np.asarray(codes)
        parts = [codes[start : start + CHUNK] for start in range(0, len(codes), CHUNK)]
        peaks = [_Walk(self.terms, self._candidates, part).peaks() for part in parts]
        return np.concatenate(peaks) if peaks else np.zeros(0, np.int64)

    def arena_mib(self, code: Codes) -> float:
        """What onnxruntime's arena has in use at most for one SubNet (V,) in a first run [MiB], without its weights.

        Not for populations: what is free in the arena depends on everything before, so each SubNet is walked by itself.
        """
        return self._arena_bytes(np.asarray(code)) / MIB


def _candidates(terms: MemoryTerms) -> dict[int, tuple[int, ...]]:
    """Value -> the earlier ones that can, in some SubNet, be stored in the same shape."""
    stored: dict[int, set[int]] = {}
    found: dict[int, tuple[int, ...]] = {}
    for step in terms.steps:
        for value in step.writes:
            if terms.values[value].temporary:
                found[value] = ()
                continue
            own = set(np.unique(terms.values[value].stored).tolist())
            found[value] = tuple(other for other, shapes in stored.items() if not own.isdisjoint(shapes))
            # written over another one, a tensor keeps that one's shape
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


def _no(a: Mask) -> Mask:
    return not a if isinstance(a, bool) else ~a


@dataclass(slots=True)
class _Walk:
    """One walk through the steps of n SubNets."""

    terms: MemoryTerms
    candidates: dict[int, tuple[int, ...]]
    codes: Codes
    gathered: dict[tuple[int, str], NDArray[np.int64]] = field(default_factory=dict)
    skips: dict[int, Mask] = field(default_factory=dict)
    owners: dict[int, Places] = field(default_factory=dict)  # value -> the tensors that it lies in
    made: dict[int, Mask] = field(default_factory=dict)  # tensor -> the SubNets that have it
    first: list[int] = field(default_factory=list)  # earliest of `last` for each tensor
    gone: set[int] = field(default_factory=set)  # tensors whose place is taken in all SubNets
    last: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    taken: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    stored: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def peaks(self) -> Bytes:
        """Largest sums of what is alive at once (n,)."""
        shape = len(self.terms.values), len(self.codes)
        self.last, self.taken, self.stored = np.zeros(shape, np.int64), np.zeros(shape, np.bool_), np.empty(shape, int)
        present = self._present()
        self._lifetimes(present)
        changes = np.zeros((len(self.terms.steps) + 2, len(self.codes)), np.int64)
        for at, (step, runs) in enumerate(zip(self.terms.steps, present, strict=True)):
            for position, value in enumerate(step.writes):
                here = _both(runs, self.made.get(value, False))
                if here is not False:
                    new = self._place(step, at, position, value, here)
                    changes[at] += self._value(value, "bytes_") * new
        self._release(changes)
        peaks: Bytes = np.cumsum(changes, axis=0).max(axis=0)
        return peaks

    # -- gathering ---------------------------------------------------------------------------------------------------

    def _value(self, value: int, name: str) -> NDArray[np.int64]:
        """One of a value's arrays for every SubNet, (n,) or ()."""
        term: ValueTerm = self.terms.values[value]
        key = id(term), name
        if key not in self.gathered:
            table = getattr(term, name)
            self.gathered[key] = table[tuple(self.codes[:, column] for column in term.variables)]
        return self.gathered[key]

    def _skipped(self, skipped: tuple[int, NDArray[np.bool_]]) -> Mask:
        key = id(skipped[1])
        if key not in self.skips:
            self.skips[key] = skipped[1][self.codes[:, skipped[0]]]
        return self.skips[key]

    def _sources(self, value: int) -> Places:
        """The values that readers of `value` read: where its block is skipped, what the block would have read."""
        alias = self.terms.aliases.get(value)
        if alias is None:
            return [(value, True)]
        entry, skipped = alias
        left_out = self._skipped(skipped)
        return [(value, _no(left_out)), *((source, _both(left_out, mask)) for source, mask in self._sources(entry))]

    def _tensors(self, value: int, runs: Mask) -> Places:
        """The tensors that readers of `value` read, where their step runs."""
        return [
            (tensor, mask)
            for source, where in self._sources(value)
            for tensor, lies in self.owners.get(source, [])
            if (mask := _both(runs, _both(where, lies))) is not False
        ]

    # -- lifetimes ---------------------------------------------------------------------------------------------------

    def _present(self) -> list[Mask]:
        """For each step, the SubNets that run it: not skipped, and somebody reads what it writes."""
        used: dict[int, Mask] = {}
        present: list[Mask] = []

        def use(value: int, where: Mask) -> None:
            for source, mask in self._sources(value):
                used[source] = _either(used.get(source, False), _both(where, mask))

        for value in self.terms.outputs:
            use(value, True)
        for step in reversed(self.terms.steps):
            runs: Mask = False
            for value in step.writes:
                runs = _either(runs, used.get(value, False))
            if step.skipped is not None:
                runs = _both(runs, _no(self._skipped(step.skipped)))
            present.append(runs)
            for value in step.reads:
                use(value, runs)
        present.reverse()
        return present

    def _lifetimes(self, present: Sequence[Mask]) -> None:
        """Which tensors values lie in, and when these are read for the last time."""
        for value in self.terms.inputs:
            self.owners[value] = [(value, True)]
        for at, (step, runs) in enumerate(zip(self.terms.steps, present, strict=True)):
            for value in step.reads:
                self._read(value, runs, at)
            view = self._view(step)
            shared = self._tensors(step.reads[0], view) if view is not False else []
            for value in step.writes:
                self.made[value] = made = _both(runs, _no(view))
                self.taken[value] = _no(made)  # who is not there has no place to give
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
        """The SubNets in which what a step writes is what it reads."""
        if not step.relayout:
            return step.view
        (written,) = step.writes
        view: Mask = False
        for source, mask in self._sources(step.reads[0]):
            same = self._value(source, "blocked") == self._value(written, "blocked")
            view = _either(view, _both(mask, bool(same) if same.ndim == 0 else same))
        return view

    # -- places ------------------------------------------------------------------------------------------------------

    def _place(self, step: StepTerm, at: int, position: int, value: int, here: Mask) -> NDArray[np.bool_]:
        """Put a tensor over another one where it can be; the SubNets (n,) in which it takes up memory of its own."""
        new = np.broadcast_to(np.asarray(here), len(self.codes)).copy()
        self.stored[value] = self._value(value, "stored")
        if position == 0:
            for read in step.in_place:
                for source, where in self._sources(read):
                    for tensor, lies in self.owners.get(source, []):
                        if tensor in self.made:
                            same = self._value(source, "shapes") == self._value(value, "shapes")
                            fits = new & where & lies & same & (self.last[tensor] == at) & ~self.taken[tensor]
                            fits &= self._times_read(step, tensor) == 1
                            self.taken[tensor] |= fits
                            self.stored[value] = np.where(fits, self.stored[tensor], self.stored[value])
                            new &= ~fits
        if self.terms.same_shape:
            candidates = [t for t in self.candidates[value] if t not in self.gone and self.first[t] < at]
            if candidates:
                self._reuse(np.asarray(candidates), at, value, new)
        return new

    def _times_read(self, step: StepTerm, tensor: int) -> NDArray[np.int64]:
        """How often a step reads what lies in a tensor, (n,)."""
        times = np.zeros(len(self.codes), np.int64)
        for read in step.reads:
            for lies_in, where in self._tensors(read, True):
                if lies_in == tensor:
                    times += where
        return times

    def _reuse(self, candidates: NDArray[np.int64], at: int, value: int, new: NDArray[np.bool_]) -> None:
        """Take the place of the tensor of the same shape that was freed last."""
        wanted = new & (self.last[value] < len(self.terms.steps))
        last = self.last[candidates]
        fits = (
            ~self.taken[candidates] & (last < at) & (self.stored[candidates] == self._value(value, "stored")) & wanted
        )
        best = np.where(fits, last, -1)
        chosen = best.argmax(axis=0)
        rows = np.flatnonzero(fits.any(axis=0))
        self.taken[candidates[chosen[rows]], rows] = True
        new[rows] = False
        self.gone.update(candidates[self.taken[candidates].all(axis=1)].tolist())

    def _release(self, changes: NDArray[np.int64]) -> None:
        rows = np.arange(len(self.codes))
        for value, here in self.made.items():
            if here is not False:
                changes[self.last[value] + 1, rows] -= self._value(value, "bytes_") * ~self.taken[value]
