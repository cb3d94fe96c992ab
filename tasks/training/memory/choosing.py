"""The fastest recipes for the spans of a network within a budget of memory, by dynamic programming along the spans."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.training.memory.program import SpanProgram
from tasks.training.memory.recipes import Recipe, Span

GRAINS = 8192
"""Bytes that are kept are rounded up to this share of the budget, for each span."""
SMALLEST_STEP = 1.002
"""The least budget is known to this factor."""


@dataclass(frozen=True, slots=True)
class Option:
    """A recipe for the units first … last, and what it comes to."""

    first: int
    last: int
    span: Span
    recipe: Recipe
    program: SpanProgram


def without_dominated(options: list[Option]) -> list[Option]:
    """Options for the same units that no other one beats, or equals, in seconds, kept bytes and both peaks."""

    def points(option: Option) -> tuple[float, ...]:
        found = option.program
        return (found.seconds, found.held, found.forward_peak, found.backward_peak)

    kept: list[Option] = []
    for option in sorted(options, key=points):
        if not any(all(a <= b for a, b in zip(points(other), points(option), strict=True)) for other in kept):
            kept.append(option)
    return kept


def fastest(options: list[Option], units: int, budget: int) -> list[Option] | None:
    """Options that cover all units in order with the least seconds, within a budget [bytes]; None where there are none.

    At each span, what earlier spans keep and the span's own peak fit the budget, in its forward pass and in its
    backward pass, where weight gradients of later spans count, too.
    """
    if budget <= 0:
        return None
    grain = budget / GRAINS
    later = _weights_after(options, units)
    best = [np.full(GRAINS + 1, np.inf) for _ in range(units + 1)]
    chosen: list[NDArray[np.int64]] = [np.full(GRAINS + 1, -1, np.int64) for _ in range(units + 1)]
    best[0][0] = 0.0
    for number, option in sorted(enumerate(options), key=lambda pair: pair[1].first):
        program = option.program
        peak = max(program.forward_peak, program.backward_peak + later[option.last + 1])
        room = int((budget - peak) // grain) if peak <= budget else -1
        kept = -int(-program.held // grain)
        count = min(room, GRAINS - kept) + 1
        if count <= 0:
            continue
        found = best[option.first][:count] + program.seconds
        target = best[option.last + 1][kept : kept + count]
        better = found < target
        target[better] = found[better]
        chosen[option.last + 1][kept : kept + count][better] = number
    place = int(np.argmin(best[units]))
    if not np.isfinite(best[units][place]):
        return None
    return _traced_back(options, chosen, units, place, grain)


def _traced_back(
    options: list[Option], chosen: list[NDArray[np.int64]], units: int, place: int, grain: float
) -> list[Option]:
    path: list[Option] = []
    unit = units
    while unit:
        option = options[chosen[unit][place]]
        path.append(option)
        place -= -int(-option.program.held // grain)
        unit = option.first
    return path[::-1]


def _weights_after(options: list[Option], units: int) -> list[int]:
    """For each unit, bytes of the weight gradients of this and later units, which stay."""
    own = {option.first: option.program.weights for option in options if option.first == option.last}
    found = [0] * (units + 1)
    for unit in reversed(range(units)):
        found[unit] = found[unit + 1] + own[unit]
    return found


def least_budget(options: list[Option], units: int) -> int:
    """The least budget that some options meet [bytes], up to 0.2 %."""
    low, high = 1, 2**20
    while fastest(options, units, high) is None:
        low, high = high, 2 * high
    while high / low > SMALLEST_STEP:
        middle = (low + high) // 2
        if fastest(options, units, middle) is None:
            low = middle + 1
        else:
            high = middle
        if low >= high:
            break
    return high
