"""Policies beside the best that was possible, and beside the best variant that never changes.

Legend: V variants, R requests.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from adaptive_runtime.policy import ChoicePolicy, MostAccurate, VariantLookUp
from benchmarks.simulation.outcomes import RequestEnds, SimulatedOutcome
from benchmarks.simulation.published import FixedChoice
from benchmarks.simulation.server import Simulation

PIECE = 4096


class PolicyRegret(NamedTuple):
    """regret_points: accuracy over all requests, late ones wrong, that the clairvoyant has more [percentage points]."""

    name: str
    outcome: SimulatedOutcome
    regret_points: float


def clairvoyant(simulation: Simulation) -> SimulatedOutcome:
    """A bound for every policy: each request gets at once the most accurate variant that is in time for it.

    It knows the slow-down and noise of each request, and no request waits for another. Variants that break the limits of
    energy or memory take part only where all do.
    """
    requests, limits = simulation.requests, simulation.limits
    table, budget_ms = requests.table, limits.budget_ms
    look_up = VariantLookUp(table)
    allowed = [variant for variant in range(len(table)) if look_up.keeps_extras(variant, limits)]
    best_first = np.array(sorted(allowed or range(len(table)), key=look_up.place_V.__getitem__))
    latency_ms_V, classes_V = requests.latency_ms_V[best_first], table.load_class_V[best_first]
    count = len(requests)
    ends_R, accuracy_R = np.full(count, RequestEnds.REJECTED.value), np.zeros(count)
    taken_ms_R = np.full(count, np.nan)
    for start in range(0, count, PIECE):
        times_ms_VR = latency_ms_V[:, None] * requests.factor_CR[classes_V, start : start + PIECE]
        within_VR = times_ms_VR <= budget_ms
        row_R, column_R = within_VR.argmax(0), np.arange(within_VR.shape[1])
        found = np.flatnonzero(within_VR[row_R, column_R])
        ends_R[start + found] = RequestEnds.IN_TIME
        accuracy_R[start + found] = table.accuracy_V[best_first[row_R[found]]]
        taken_ms_R[start + found] = times_ms_VR[row_R[found], found]
    return SimulatedOutcome(
        ends_R=ends_R, accuracy_R=accuracy_R, latency_ms_R=taken_ms_R, duration_s=requests.trace.duration_s, switches=0
    )


def best_static(simulation: Simulation, attainment: float) -> tuple[int, SimulatedOutcome]:
    """The variant that, always run, is in time for this share of requests and has the highest accuracy over all requests.

    Where no variant is in time so often, it is the one that is most often. Variants that others replace are left out.
    """
    table = simulation.requests.table
    look_up = VariantLookUp(table)
    objective = MostAccurate(look_up)
    order_V = np.argsort(look_up.place_V)
    candidates = []
    for load_class in np.unique(table.load_class_V):
        of_class = order_V[table.load_class_V[order_V] == load_class]
        latency_ms = simulation.requests.latency_ms_V[of_class]
        candidates += of_class[latency_ms < np.minimum.accumulate([np.inf, *latency_ms[:-1]])].tolist()
    allowed = [variant for variant in candidates if look_up.keeps_extras(variant, simulation.limits)]
    once = replace(simulation, every_s=inf)
    outcomes = {variant: once.run(FixedChoice(objective, variant)) for variant in allowed or candidates}

    def worth(variant: int) -> tuple[bool, float]:
        outcome = outcomes[variant]
        enough = outcome.attainment >= attainment
        return enough, outcome.accuracy if enough else outcome.attainment

    best = max(outcomes, key=worth)
    return best, outcomes[best]


def compare(simulation: Simulation, policies: Mapping[str, ChoicePolicy], like: str) -> list[PolicyRegret]:
    """Every policy, the best static variant that is in time as often as policy `like`, and the clairvoyant."""
    outcomes = {name: simulation.run(policy) for name, policy in policies.items()}
    variant, outcome = best_static(simulation, outcomes[like].attainment)
    outcomes[f"always {simulation.requests.table.names[variant]}"] = outcome
    best = clairvoyant(simulation)
    outcomes["clairvoyant"] = best
    return [PolicyRegret(name, each, (best.accuracy - each.accuracy) * 100) for name, each in outcomes.items()]
