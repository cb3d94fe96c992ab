"""Memory of activations of any SubNets of one network, under one runtime's rules, in the given or the best order.

Planning an order takes milliseconds to seconds for each SubNet. For populations there are therefore bounds: no order
needs less than the largest moment (`tailor_ir.memory.terms`), and the planned order needs no more than the given order
or the order planned for the largest SubNet.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from solvers.schedules import best_order
from solvers.tables import Codes, Gathering, with_derived
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules, arena_peak
from tailor_ir.memory.lifetimes import Bytes, ReuseCandidates, Walk, in_parts, reuse_candidates
from tailor_ir.memory.terms import MemoryTerms, memory_terms, moments
from tailor_ir.spaces.space import Structure

VISITS = 2_000
"""Sets of completed steps visited for each part of one SubNet. A file gets more visits, so its peak may be lower."""


class PlannedOrders:
    """Memory of extended codes (n, V + D). cardinalities: of the variables (V,). The order of each SubNet is cached."""

    def __init__(self, terms: MemoryTerms, cardinalities: Sequence[int]) -> None:
        assert not terms.same_shape
        self._terms = terms
        self._largest = np.array([cardinalities], np.int64) - 1
        self._cardinalities = (*cardinalities, *[2] * len(terms.derived))
        self._known: dict[bytes, tuple[int, tuple[int, ...]]] = {}

    def bounds(self, codes: Codes) -> tuple[Bytes, Bytes]:
        """Lower and upper bounds of the peaks (n,)."""
        least = np.max([moment(codes) for moment in self._moments], axis=0).astype(np.int64)
        return least, np.minimum(self._walked(self._terms, codes), self._walked(self._as_largest, codes))

    def peaks(self, codes: Codes) -> Bytes:
        """Peaks (n,), each in the planned order."""
        return np.array([self._plan(code)[0] for code in codes], np.int64)

    def in_order(self, code: Codes) -> MemoryTerms:
        """The terms with their steps in the order of the SubNet of one code (V + D,)."""
        return reordered(self._terms, self._plan(code)[1])

    @cached_property
    def _moments(self) -> list[Gathering]:
        return [Gathering(self._cardinalities, tables) for tables in moments(self._terms, self._cardinalities)]

    @cached_property
    def _as_largest(self) -> MemoryTerms:
        """The terms with their steps in the order planned for the largest SubNet."""
        (code,) = with_derived(self._largest, self._terms.derived)
        at, load = Walk(self._terms, {}, code[None]).workload()
        return reordered(self._terms, [at[step] for step in best_order(load, VISITS).order])

    @cached_property
    def _rank(self) -> dict[int, int]:
        """Step, by identity -> its position in the order planned for the largest SubNet."""
        return {id(step): rank for rank, step in enumerate(self._as_largest.steps)}

    @staticmethod
    def _walked(terms: MemoryTerms, codes: Codes) -> Bytes:
        return in_parts(lambda part: Walk(terms, {}, part).peaks(), codes)

    def _plan(self, code: Codes) -> tuple[int, tuple[int, ...]]:
        """The peak of one SubNet and its steps in order, as positions in `MemoryTerms.steps`."""
        key = np.ascontiguousarray(code, np.int16).tobytes()
        if key not in self._known:
            at, load = Walk(self._terms, {}, code[None]).workload()
            ranks = [self._rank[id(self._terms.steps[step])] for step in at]
            found = best_order(load, VISITS, [tuple(sorted(range(len(at)), key=ranks.__getitem__))])
            self._known[key] = found.peak_bytes, tuple(at[step] for step in found.order)
        return self._known[key]


def reordered(terms: MemoryTerms, order: Sequence[int]) -> MemoryTerms:
    """The terms with some steps in another order, which is legal in some SubNet.

    Every other step runs before its successor in the present order, and after everything that it needs in any SubNet.
    """
    place = dict(zip(order, range(len(order)), strict=True))
    keys: list[tuple[int, int]] = []
    following = len(order)
    for at in reversed(range(len(terms.steps))):
        following = place.get(at, following)
        keys.append((following, at))
    keys.reverse()
    writer = {value: at for at, step in enumerate(terms.steps) for value in step.writes}
    needs = [
        {
            writer[source]
            for value in step.reads
            for source in (value, *(one for one, _ in terms.sources.get(value, ())))
            if source in writer
        }
        for step in terms.steps
    ]
    users: list[list[int]] = [[] for _ in terms.steps]
    for at, needed in enumerate(needs):
        for earlier in needed:
            users[earlier].append(at)
    left = [len(needed) for needed in needs]
    ready = [keys[at] for at, number in enumerate(left) if not number]
    heapify(ready)
    steps = []
    while ready:
        _, at = heappop(ready)
        steps.append(terms.steps[at])
        for user in users[at]:
            left[user] -= 1
            if not left[user]:
                heappush(ready, keys[user])
    assert len(steps) == len(terms.steps)
    return replace(terms, steps=tuple(steps))


class ActivationMemory:
    """Peak memory at batch 1. Codes: choice indices, one row for each SubNet. cardinalities: of their columns."""

    def __init__(self, terms: MemoryTerms, cardinalities: Sequence[int]) -> None:
        self.terms = terms
        self._candidates: ReuseCandidates = reuse_candidates(terms) if terms.same_shape else {}
        self._orders = PlannedOrders(terms, cardinalities) if terms.planned else None

    @classmethod
    def of(
        cls, structure: Structure, element_bytes: Mapping[str, int], rules: Rules = ONNXRUNTIME
    ) -> "ActivationMemory":
        """element_bytes: bytes per element of values that are not float32."""
        return cls(memory_terms(structure, element_bytes, rules), structure.space.cardinalities.tolist())

    def peak_bytes(self, codes: Codes) -> Bytes:
        """The peak memory (n,) of activations of SubNets (n, V), without the network's input.

        With planned orders, each SubNet is planned separately, which takes milliseconds to seconds; `bounds` is fast.
        """
        codes = with_derived(np.asarray(codes), self.terms.derived)
        if self._orders is not None:
            return self._orders.peaks(codes)
        return in_parts(lambda part: Walk(self.terms, self._candidates, part).peaks(), codes)

    def bounds(self, codes: Codes) -> tuple[Bytes, Bytes]:
        """Lower and upper bounds of the peaks (n,); the exact peaks if no order is planned."""
        if self._orders is None:
            peaks = self.peak_bytes(codes)
            return peaks, peaks
        return self._orders.bounds(with_derived(np.asarray(codes), self.terms.derived))

    def arena_bytes(self, code: NDArray[np.int64]) -> int:
        """The peak use of onnxruntime's arena for one SubNet (V,) in a first run (`arena`), without its weights.

        Not for populations: free memory in the arena depends on the whole history, so each SubNet is simulated separately.
        """
        codes = with_derived(np.asarray(code)[None], self.terms.derived)
        terms = self.terms if self._orders is None else self._orders.in_order(codes[0])
        return arena_peak(Walk(terms, self._candidates, codes).events())
