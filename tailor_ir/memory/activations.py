"""Memory of activations of any SubNets of one network, under one runtime's rules."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from solvers.tables import with_derived
from tailor_ir.memory.arena import arena_peak
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules
from tailor_ir.memory.lifetimes import Bytes, Codes, ReuseCandidates, Walk, in_parts, reuse_candidates
from tailor_ir.memory.orders import PlannedOrders
from tailor_ir.memory.terms import MemoryTerms, memory_terms
from tailor_ir.spaces.structure import Structure


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
