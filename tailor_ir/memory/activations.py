"""Memory of activations of any SubNets of one network, under one runtime's rules."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from solvers.tables import with_derived
from tailor_ir.memory.arena import arena_peak
from tailor_ir.memory.layouts import ONNXRUNTIME, Rules
from tailor_ir.memory.lifetimes import Bytes, Codes, Walk, reuse_candidates
from tailor_ir.memory.terms import MemoryTerms, memory_terms
from tailor_ir.spaces.structure import Structure

CHUNK = 1024  # SubNets at once: their arrays stay in the cache


class ActivationMemory:
    """Peaks of memory, batch 1; of codes: choice indices, one row for each SubNet."""

    def __init__(self, terms: MemoryTerms) -> None:
        self.terms = terms
        self._candidates = reuse_candidates(terms)

    @classmethod
    def of(
        cls, structure: Structure, element_bytes: Mapping[str, int], rules: Rules = ONNXRUNTIME
    ) -> "ActivationMemory":
        """element_bytes: of values that are not float32."""
        return cls(memory_terms(structure, element_bytes, rules))

    def peak_bytes(self, codes: Codes) -> Bytes:
        """The peak memory (n,) of activations of SubNets (n, V), without the network's input."""
        codes = with_derived(np.asarray(codes), self.terms.derived)
        parts = [codes[start : start + CHUNK] for start in range(0, len(codes), CHUNK)]
        peaks = [Walk(self.terms, self._candidates, part).peaks() for part in parts]
        return np.concatenate(peaks) if peaks else np.zeros(0, np.int64)

    def arena_bytes(self, code: NDArray[np.int64]) -> int:
        """The peak use of onnxruntime's arena for one SubNet (V,) in a first run (`arena`), without its weights.

        Not for populations: what is free in the arena depends on everything before, so each SubNet is walked by itself.
        """
        codes = with_derived(np.asarray(code)[None], self.terms.derived)
        return arena_peak(Walk(self.terms, self._candidates, codes).events())
