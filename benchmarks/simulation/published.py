"""Published policies, and a variant that never changes: for comparisons.

Both policies know the load by one number and switch whenever another variant is better by it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.policy.choosing import decision_for
from adaptive_runtime.policy.decisions import ChoiceState, Decision, DecisionInputs, Step
from adaptive_runtime.policy.inputs import LoadFactors
from adaptive_runtime.policy.lookup import FoundVariant, LeastCost, Objective

MEDIAN = 0.5


@dataclass(frozen=True, slots=True)
class FixedChoice:
    """The same variant for ever."""

    objective: Objective
    variant: int

    def __call__(self, state: ChoiceState, inputs: DecisionInputs) -> Decision:
        look_up = self.objective.look_up
        effective_ms = look_up.effective_ms(self.variant, inputs.limits, inputs.factors)
        found = FoundVariant(self.variant, effective_ms, look_up.keeps(self.variant, inputs.limits, inputs.factors))
        return _chosen(self.objective, state, inputs, found, "the only variant")


@dataclass(frozen=True, slots=True)
class RatioChoice:
    """With r = measured over predicted latency of the running variant: the best of all within budget / r, at once.

    share: used share of the budget; as published, all of it. Source: AdaptiveNet §5.3, without its new search when no variant
    fits; here, the fastest runs then.
    """

    objective: Objective
    share: float = 1.0

    def __call__(self, state: ChoiceState, inputs: DecisionInputs) -> Decision:
        ratio = 1.0 if inputs.ratio is None else inputs.ratio
        limits = inputs.limits.tighter(1 - self.share).model_copy(update={"quantile": MEDIAN})
        classes = self.objective.look_up.load_classes
        factors = LoadFactors(mean=(ratio,) * classes, deviation=(0.0,) * classes)
        found = self.objective.find(limits, factors, inputs.without)
        return _chosen(self.objective, state, inputs, found, f"measured over predicted latency is {ratio:.3g}")


@dataclass(frozen=True, slots=True)
class LoadBandChoice:
    """The variant with the least cost under the slow-down that was measured in the present band of the load index, at once.

    edges: load indices where the next band begins. by_band: factors, one more than edges. Source: AdaScale §IV.
    """

    objective: LeastCost
    edges: tuple[float, ...]
    by_band: tuple[LoadFactors, ...]

    def __post_init__(self) -> None:
        if len(self.by_band) != len(self.edges) + 1 or list(self.edges) != sorted(self.edges):
            got = f"{len(self.by_band)} bands with edges {', '.join(f'{edge:g}' for edge in self.edges)}"
            raise AdaptiveError("load bands", got, allowed="rising edges, one fewer than bands")

    @classmethod
    def measured(
        cls, objective: LeastCost, loads: Sequence[float], ratios: Sequence[float], bands: int
    ) -> "LoadBandChoice":
        """Bands of equal width over measured load indices, each with its mean of measured over predicted latency."""
        loads_N, ratios_N = np.asarray(loads), np.asarray(ratios)
        edges = np.linspace(loads_N.min(), loads_N.max(), bands + 1)[1:-1]
        band_N = np.searchsorted(edges, loads_N, side="right")
        measured = [float(ratios_N[band_N == band].mean()) for band in range(bands) if (band_N == band).any()]
        seen = [band for band in range(bands) if (band_N == band).any()]
        means = np.interp(range(bands), seen, measured)
        classes = objective.look_up.load_classes
        by_band = tuple(LoadFactors(mean=(float(mean),) * classes, deviation=(0.0,) * classes) for mean in means)
        return cls(objective, tuple(edges.tolist()), by_band)

    def __call__(self, state: ChoiceState, inputs: DecisionInputs) -> Decision:
        load = -inf if inputs.load is None else inputs.load
        band = bisect_right(self.edges, load)
        limits = inputs.limits.model_copy(update={"quantile": MEDIAN})
        found = self.objective.find(limits, self.by_band[band], inputs.without)
        return _chosen(self.objective, state, inputs, found, f"load index {load:.3g} is in band {band + 1}")


def _chosen(
    objective: Objective, state: ChoiceState, inputs: DecisionInputs, found: FoundVariant, why: str
) -> Decision:
    running = state.running
    step: Step = "stay"
    if running is None:
        step = "start"
    elif running != found.variant:
        step = "up" if objective.prefers(found.variant, running, inputs.factors) else "down"
    return decision_for(found, objective, inputs, ChoiceState(running=found.variant), step, why)
