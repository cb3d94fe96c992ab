"""Tables of variants, limits and slow-downs that tests draw, and the slow way to choose; a small table, and its decisions."""

from collections.abc import Iterable
from math import floor, inf, sqrt
from statistics import NormalDist

import numpy as np
from hypothesis import strategies as st

from adaptive_runtime.policy import (
    ChoiceLimits,
    ChoicePolicy,
    ChoiceState,
    Decision,
    DecisionInputs,
    LoadFactors,
    VariantTable,
)

eighths = st.integers(1, 8).map(lambda k: k / 8)
MOST_CLASSES = 3
THREE = VariantTable(
    names=("small", "middle", "large"),
    accuracy=(0.7, 0.8, 0.9),
    latency_ms=(2.0, 5.0, 10.0),
    energy_mj=(1.0, 2.0, 5.0),
    memory_mib=(20.0, 40.0, 100.0),
)


def decided(policy: ChoicePolicy, inputs: Iterable[DecisionInputs]) -> list[Decision]:
    """What a policy decides one after the other; what runs is always what was decided last."""
    state, made = ChoiceState(), []
    for each in inputs:
        decision = policy(state, each)
        state = decision.after
        assert state.running == decision.variant
        made.append(decision.logged)
    return made


@st.composite
def tables(draw: st.DrawFn, most: int = 40) -> VariantTable:
    """Few different values, so that there are many ties; up to seven errors of prediction."""
    count = draw(st.integers(1, most))
    column = st.lists(eighths, min_size=count, max_size=count).map(tuple)
    errors = st.lists(st.integers(0, 6).map(lambda k: k / 20), min_size=count, max_size=count).map(tuple)
    classes = st.lists(st.integers(0, MOST_CLASSES - 1), min_size=count, max_size=count).map(tuple)
    return VariantTable(
        names=tuple(f"variant {number}" for number in range(count)),
        accuracy=draw(column),
        latency_ms=draw(column),
        latency_error=draw(st.none() | errors),
        energy_mj=draw(column),
        memory_mib=draw(column),
        load_class=draw(st.none() | classes),
    )


limits = st.builds(
    ChoiceLimits,
    budget_ms=st.integers(1, 40).map(lambda k: k / 8),
    quantile=st.sampled_from([0.5, 0.9, 0.95, 0.999]),
    energy_mj=st.none() | st.integers(0, 8).map(lambda k: k / 8),
    memory_mib=st.none() | st.integers(0, 8).map(lambda k: k / 8),
)
mean_and_deviation = st.tuples(st.sampled_from([0.5, 1.0, 1.25, 2.0, 4.0]), st.sampled_from([0.0, 0.1, 0.5]))


def load_factors(variants: int, most_own: int = 4) -> st.SearchStrategy[LoadFactors]:
    """Factors of all classes, and some variants with factors of their own."""
    pairs = st.lists(mean_and_deviation, min_size=MOST_CLASSES, max_size=MOST_CLASSES)
    own = st.dictionaries(st.integers(0, variants - 1), mean_and_deviation, max_size=most_own)
    return st.builds(
        lambda chosen, own: LoadFactors(
            mean=tuple(pair[0] for pair in chosen), deviation=tuple(pair[1] for pair in chosen), own=own
        ),
        pairs,
        own,
    )


def mean_and_spread(table: VariantTable, error: float, variant: int, factors: LoadFactors) -> tuple[float, float]:
    """Of a variant's slow-down with the error of its prediction."""
    load_class = 0 if table.load_class is None else table.load_class[variant]
    mean, deviation = factors.own.get(variant, (factors.mean[load_class], factors.deviation[load_class]))
    return mean, sqrt(deviation * deviation + error * error * (mean * mean + deviation * deviation))


def factor(table: VariantTable, error: float, variant: int, limit: ChoiceLimits, factors: LoadFactors) -> float:
    """The quantile of a variant's slow-down with the error of its prediction."""
    mean, spread = mean_and_spread(table, error, variant, factors)
    return mean + NormalDist().inv_cdf(limit.quantile) * spread


def preference(table: VariantTable, variant: int) -> tuple[float, ...]:
    """Less is preferred."""
    extras = [0.0 if column is None else column[variant] for column in (table.energy_mj, table.memory_mib)]
    return (-table.accuracy[variant], table.latency_ms[variant], *extras, variant)


def by_trying_all(
    table: VariantTable,
    errors: np.ndarray,
    limit: ChoiceLimits,
    factors: LoadFactors,
    without: frozenset[int] = frozenset(),
) -> tuple[int, bool]:
    """The best variant within the limits, or the surest, none of `without`; and whether it is within."""
    energy, memory = (inf if one is None else one for one in (limit.energy_mj, limit.memory_mib))
    everyone = [each for each in range(len(table)) if each not in without]
    factors_V = {each: factor(table, errors[each], each, limit, factors) for each in everyone}
    energy_mj, memory_mib = table.energy_mj, table.memory_mib
    frugal = [
        each
        for each in everyone
        if (energy_mj is None or energy_mj[each] <= energy) and (memory_mib is None or memory_mib[each] <= memory)
    ]
    within = [each for each in frugal if table.latency_ms[each] <= limit.budget_ms / factors_V[each]]
    if within:
        return min(within, key=lambda each: preference(table, each)), True
    candidates = frugal or everyone
    found = {}
    for each in candidates:
        mean, spread = mean_and_spread(table, errors[each], each, factors)
        left = limit.budget_ms / table.latency_ms[each] - mean
        room = min(3.0, max(0.0, left / spread)) if spread else 3.0 * (left >= 0)
        found[each] = -floor(10 * room), table.latency_ms[each] * factors_V[each], preference(table, each)
    return min(found, key=found.__getitem__), False
