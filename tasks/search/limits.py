"""Limits that follow from a SuperNet alone: memory, parameters, multiply-accumulates. They are checked before a search."""

from collections.abc import Mapping, Sequence

import numpy as np

from tailor_ir import SuperNet
from tailor_ir.memory import Rules
from tasks.search.descent import least
from tasks.search.feasible import Cost, refusal
from tasks.search.problem import Codes, Problem, Values
from tasks.search.settings import Settings, WinnerLimits
from tasks.search.stage import Target, costs_of

MEASURED = {"energy_mj": None}
"""Limits of costs that only measurements give."""


class _Equal:
    """A cost and an accuracy that are equal for all SubNets."""

    def predict(self, codes: Codes) -> Values:
        """Zeros (n,)."""
        return np.zeros(len(codes))

    def score(self, codes: Codes) -> Values:
        """Zeros (n,)."""
        return np.zeros(len(codes))


def refuse_limits(net: SuperNet, settings: Settings, rules: Mapping[str, Rules]) -> None:
    """UserError for limits of memory, parameters and multiply-accumulates that no SubNet keeps. rules: by device."""
    known = _without_measured(settings, rules)
    searches = [tuple(rules)] if settings.together else [(device,) for device in rules]
    for devices in searches:
        targets = [Target(name=device, latency=_Equal(), rules=rules[device]) for device in devices]
        _refuse(net, costs_of(net, targets, known), len(targets))


def _without_measured(settings: Settings, devices: Mapping[str, Rules]) -> Settings:
    limits = {device: settings.limits_of(device).model_copy(update=MEASURED) for device in devices}
    return settings.model_copy(update={"limits": WinnerLimits(), "device_limits": limits})


def _refuse(net: SuperNet, costs: Sequence[Cost], timed: int) -> None:
    if len(costs) == timed:
        return
    latency, *others = (cost.model for cost in costs)
    problem = Problem(net.space, latency, _Equal(), tuple(others), timed=timed)
    limits = np.array([cost.limit for cost in costs])
    rng = np.random.default_rng(0)
    smallest = least(problem, rng, lambda scores: scores.excess(limits), limits)
    if not problem.evaluate(smallest[None]).within(limits)[0]:
        raise refusal(problem, costs, limits, rng)
