"""Memory of any SubNet, for whole populations: parameters and the peak of its activations."""

import numpy as np
from numpy.typing import NDArray

from profiling_agents.messages import MIB
from solvers.tables import Codes, Values
from tailor_ir import SuperNet
from tailor_ir.memory import ONNXRUNTIME, ActivationMemory, Rules
from tasks.prediction.sums import Sums, parameter_sums


class MemoryPredictor:
    """Predicts memory [MiB] of codes (n, V), batch 1. Activations are those of fp32, which no precision exceeds."""

    def __init__(self, activations: ActivationMemory, parameters: Sums, parameter_bytes: int) -> None:
        self.activations, self.parameters, self.parameter_bytes = activations, parameters, parameter_bytes

    @classmethod
    def compile(cls, net: SuperNet, rules: Rules = ONNXRUNTIME) -> "MemoryPredictor":
        """A predictor from the lifetimes and operators of a SuperNet."""
        return cls(net.activation_memory(rules), parameter_sums(net), rules.parameter_bytes)

    def predict(self, codes: Codes) -> Values:
        """Parameters and peak activations (n,) [MiB]."""
        total: Values = (self.weights_bytes(codes) + self.activations.peak_bytes(codes)) / MIB
        return total

    def weights_bytes(self, codes: Codes) -> Values:
        """Bytes of the parameters (n,)."""
        return self.parameters.predict(codes) * self.parameter_bytes

    def peak_bytes(self, codes: Codes) -> NDArray[np.int64]:
        """The peak bytes of activations (n,), without the network's input."""
        return self.activations.peak_bytes(codes)

    def within(self, limit_mib: float) -> "MemoryPredictor | MemoryWithin":
        """The predictor for a search with a limit; an order is planned only if it decides whether the limit is kept."""
        return MemoryWithin(self, limit_mib) if self.activations.terms.planned else self

    def arena_mib(self, code: Codes) -> float:
        """The peak use of onnxruntime's arena for one SubNet (V,) in a first run [MiB], without its weights."""
        return self.activations.arena_bytes(code) / MIB


class MemoryWithin:
    """Memory [MiB] of codes (n, V) in planned order, for a limit: above the limit exactly if the prediction is.

    If bounds decide that, a bound is returned in place of the prediction.
    """

    def __init__(self, memory: MemoryPredictor, limit_mib: float) -> None:
        self.memory, self.limit_mib = memory, limit_mib

    def predict(self, codes: Codes) -> Values:
        """Parameters and peak activations (n,) [MiB], or bounds on the same side of the limit."""
        codes = np.asarray(codes)
        weights = self.memory.weights_bytes(codes)
        least, most = self.memory.activations.bounds(codes)
        left = self.limit_mib * MIB - weights
        peaks = np.where(least > left, least, most)
        open_ = (least <= left) & (left < most) & (least < most)
        peaks[open_] = self.memory.peak_bytes(codes[open_])
        total: Values = (weights + peaks) / MIB
        return total
