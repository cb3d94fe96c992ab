"""Stage "check": refuse an impossible network, space, limit or budget before anything is trained or measured."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient
from profiling_agents.messages import AgentError
from tailor_ir import SuperNet
from tailor_ir.memory import Rules
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.data import DataSettings
from tasks.evaluation.models import ModelSettings
from tasks.measuring.settings import TimingSettings
from tasks.measuring.subnets import SubNetMeter
from tasks.search.feasibility import least, refusal
from tasks.search.problem import Codes, Problem, Scores, Values
from tasks.search.settings import Settings, WinnerLimits
from tasks.search.stage import Target, costs_of
from tasks.training import compile
from tasks.training.finetune.settings import PretrainingSettings
from tasks.training.pretraining import cut_out

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
    known = {device: settings.limits_of(device).model_copy(update=MEASURED) for device in rules}
    settings = settings.model_copy(update={"limits": WinnerLimits(), "device_limits": known})
    for devices in [tuple(rules)] if settings.together else [(device,) for device in rules]:
        targets = [Target(name=device, latency=_Equal(), rules=rules[device]) for device in devices]
        costs = costs_of(net, targets, settings)
        if len(costs) == len(targets):
            continue
        latency, *others = (cost.model for cost in costs)
        problem = Problem(net.space, latency, _Equal(), tuple(others), timed=len(targets))
        limits, rng = np.array([cost.limit for cost in costs]), np.random.default_rng(0)
        smallest = least(problem, rng, partial(Scores.excess, budgets=limits), limits)
        if not problem.evaluate(smallest[None]).within(limits)[0]:
            raise refusal(problem, costs, limits, rng)


REACHABLE = 0.25
"""Share of the smallest SubNet's latency; engines and implementations chosen later have saved at most two thirds so far."""
TIMED_FILE = "timed.jsonl"


@dataclass(frozen=True, slots=True)
class BudgetedDevice:
    """A device with latency budgets. agent: its client and lease, while SubNets are timed. batch: samples of one run."""

    name: str
    lowest_ms: float
    agent: Callable[[], AbstractContextManager[AgentClient]]
    batch: int = 1


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """The devices with budgets, and the settings for timing SubNets there; files in `out`."""

    devices: Sequence[BudgetedDevice]
    timing: TimingSettings
    out: Path
    progress: Progress

    def refuse(self, net: SuperNet) -> None:
        """UserError for a budget far below the smallest SubNet's latency. Devices that do not answer are left out."""
        for device in self.devices:
            try:
                smallest_ms = self._smallest_ms(net, device)
            except AgentError as error:
                self.progress.say(f"budgets of '{device.name}' are checked after training: {error}")
                continue
            if smallest_ms is not None and device.lowest_ms < REACHABLE * smallest_ms:
                raise UserError(
                    "search.budgets_ms",
                    f"{device.lowest_ms:g} ms is far below the smallest SubNet, {smallest_ms:.3g} ms on '{device.name}' by the "
                    "runtime's defaults",
                    allowed=f"about {smallest_ms:.2g} ms and more",
                    next_step="raise the budget or give the space smaller choices",
                )

    def _smallest_ms(self, net: SuperNet, device: BudgetedDevice) -> float | None:
        """The latency of the smallest SubNet [ms]; None if it cannot be timed, which later stages report."""
        folder = self.out / device.name
        with tempfile.TemporaryDirectory() as name, device.agent() as client:
            net.save(Path(name))
            batched = tailor_ir.load(Path(name), batch=device.batch)
            meter = SubNetMeter(batched, client, self.timing.measure, self.timing.limits)
            folder.mkdir(parents=True, exist_ok=True)
            ends, file = [net.max_config, net.min_config], folder / TIMED_FILE
            return meter.measure(ends, file, self.progress, "time the smallest SubNet")[1].p50_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class UncompiledNetwork:
    """A network with the settings of its compilation. space: the choices of its SuperNet.

    first: the first of two stages of training, which may be absent. backbone_space: of the backbone by itself.
    """

    settings: compile.Settings
    model: ModelSettings
    data: DataSettings
    space: Mapping[str, Any] | None
    first: PretrainingSettings
    backbone_space: Mapping[str, Any] | None


def network(
    given: UncompiledNetwork, search: Settings, rules: Mapping[str, Rules], budgets: BudgetCheck
) -> compile.SpaceSizes:
    """Compile a network with random weights; returns the sizes of its space. rules: of memory, by device.

    Raises UserError or TailorError for a network or space that cannot be used, and for a backbone that does not fit into the
    network; UserError for limits that no SubNet keeps, and for budgets as `BudgetCheck.refuse`.
    """
    net = compile.supernet_of(given.settings, given.model, given.data, None, given.space)
    if given.first.backbone is not None:
        cut_out(given.first, given.settings, given.model, given.backbone_space, net)
    refuse_limits(net, search, rules)
    budgets.refuse(net)
    return compile.sizes(net.space)


def supernet(folder: Path, search: Settings, rules: Mapping[str, Rules]) -> compile.SpaceSizes:
    """The sizes of a SuperNet's space. UserError for limits that no SubNet keeps."""
    net = tailor_ir.load(folder)
    refuse_limits(net, search, rules)
    return compile.sizes(net.space)
