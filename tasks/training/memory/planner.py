"""Plans of training steps: for a network, a batch and a memory budget, the fastest way to stay within the budget.

Dynamic programming along the spans of the network finds the fastest recipes.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from profiling_agents.messages import MIB
from tasks.base.errors import UserError
from tasks.training.memory.network import Network, trace
from tasks.training.memory.optimisers import OptimiserOnDisk, measure_optimiser, plain_optimiser
from tasks.training.memory.program import SpanProgram, StepFacts, total, write
from tasks.training.memory.recipes import LOSSY, Coding, Mean, Recipe, Span, StepCosts, measure, recipes_of, spans_of

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


ALL_MEANS = frozenset(Mean)
ALLOWED_BITS = (32, 8, 4)
MOST_JOINED = 12
"""Units that are computed again as one span."""
MOST_MICRO_BATCHES = 16
SMALLEST_STATE = 0.01
"""Of the bytes that are always there, which the optimiser's state has at least where it waits on disk."""
LOSS_TENSORS = 4
"""Tensors of the output's size that a loss is taken to need."""


@dataclass(frozen=True)
class MemoryPlan:
    """How a training step is done.

    peak_mib: predicted; it has weights, buffers, the input, the optimiser's state, and all that the step needs.
    seconds: predicted. micro_batches: how many parts of the batch, one after the other. lossy: whether activations
    are rounded, so that gradients are not exactly those of plain training. state_on_disk: of the optimiser, between updates.
    """

    budget_mib: float
    peak_mib: float
    seconds: float
    micro_batches: int
    early: bool
    state_on_disk: bool
    options: tuple[Option, ...]
    facts: StepFacts
    constants: dict[str, Tensor]
    batch: int
    folder: str | None

    @property
    def means(self) -> frozenset[Mean]:
        """The means that the plan makes use of."""
        recipes = [option.recipe for option in self.options]
        codings = {c for r in recipes for c in (r.style.coding, r.entry)}
        used = {
            Mean.UPDATE: self.early,
            Mean.FUSE: any(r.style.fuse for r in recipes),
            Mean.RECOMPUTE: any(r.again for r in recipes),
            Mean.ENCODE: any(r.style.gates for r in recipes) or bool(codings & set(LOSSY)),
            Mean.SWAP: Coding.DISK in codings or self.state_on_disk,
            Mean.DIVIDE: self.micro_batches > 1,
        }
        return frozenset(mean for mean, there in used.items() if there)

    @property
    def lossy(self) -> bool:
        return any({option.recipe.style.coding, option.recipe.entry} & set(LOSSY) for option in self.options)


@dataclass(frozen=True)
class _Division:
    """The network for batches of one size. always: bytes that are there whatever the plan is."""

    micro_batches: int
    network: Network
    costs: StepCosts
    constants: dict[str, Tensor]
    units: tuple[Span, ...]
    always: int


@dataclass(frozen=True)
class _Choices:
    """What a division allows with some means."""

    division: _Division
    facts: StepFacts
    options: list[Option]
    always: int
    state_on_disk: bool = False
    update_s: float = 0.0
    """Of all weights together."""

    def fastest(self, budget: int) -> list[Option] | None:
        return fastest(self.options, len(self.division.units), budget - self.always)

    @property
    def least(self) -> int:
        return self.always + least_budget(self.options, len(self.division.units))


class StepPlanner:
    """Measures a network once, and plans its training step for any budget.

    module: float32 on the CPU, in the mode in which it is trained; weights that are frozen do not require gradients.
    x: a batch (B, …). optimiser: whose state counts; of an `OptimiserOnDisk` it may wait there. folder: for what is
    swapped to disk.
    """

    def __init__(
        self,
        module: nn.Module,
        x: Tensor,
        *,
        optimiser: torch.optim.Optimizer | OptimiserOnDisk | None = None,
        folder: str | None = None,
    ) -> None:
        _check(module, x, folder)
        self._module, self._x, self._folder = module, x, folder
        self._optimiser = measure_optimiser(plain_optimiser(optimiser))
        self._state_may_wait = isinstance(optimiser, OptimiserOnDisk)
        self._divisions: dict[int, _Division] = {}
        self._choices: dict[tuple[frozenset[Mean], int], list[_Choices]] = {}
        self._trained = sum(p.nbytes for p in module.parameters() if p.requires_grad)

    def plan(self, budget_mib: float, *, means: frozenset[Mean] = ALL_MEANS, bits: int = 32) -> MemoryPlan:
        """The fastest plan. bits: the fewest that an activation may be rounded to; 32: exact gradients.

        Errors: a budget that no plan meets, in one line with the least one.
        """
        budget = int(budget_mib * MIB)
        found = [
            self._as_plan(choices, path, budget_mib, Mean.UPDATE in means)
            for choices in self._all_choices(means, bits)
            if (path := choices.fastest(budget)) is not None
        ]
        if not found:
            least = self.least_mib(means=means, bits=bits)
            raise UserError(
                "training memory",
                f"a budget of {budget_mib:.4g} MiB for '{type(self._module).__name__}' with a batch of {len(self._x)}",
                allowed=f"{least:.1f} MiB or more",
                next_step="raise the budget, or take a smaller batch",
            )
        return min(found, key=lambda plan: plan.seconds)

    def least_mib(self, *, means: frozenset[Mean] = ALL_MEANS, bits: int = 32) -> float:
        """The least budget that can be met [MiB], up to 0.2 %."""
        return min(choices.least for choices in self._all_choices(means, bits)) / MIB

    def _as_plan(self, choices: _Choices, path: list[Option], budget_mib: float, early: bool) -> MemoryPlan:
        peak, seconds = total(option.program for option in path)
        division = choices.division
        return MemoryPlan(
            budget_mib=budget_mib,
            peak_mib=(choices.always + peak) / MIB,
            seconds=seconds * division.micro_batches + choices.update_s,
            micro_batches=division.micro_batches,
            early=early,
            state_on_disk=choices.state_on_disk,
            options=tuple(path),
            facts=choices.facts,
            constants=division.constants,
            batch=len(self._x),
            folder=self._folder,
        )

    def _all_choices(self, means: frozenset[Mean], bits: int) -> list[_Choices]:
        if bits not in ALLOWED_BITS:
            raise UserError("training memory", f"bits={bits}", allowed="32 (exact), 8 or 4")
        if (means, bits) not in self._choices:
            parts = self._allowed_divisions() if Mean.DIVIDE in means else [1]
            self._choices[means, bits] = [
                self._choose_from(self._division(part), means, bits, state_on_disk)
                for part in parts
                for state_on_disk in ((False, True) if self._is_worth_the_disk(part, means) else (False,))
            ]
        return self._choices[means, bits]

    def _is_worth_the_disk(self, parts: int, means: frozenset[Mean]) -> bool:
        """Whether plans may leave the optimiser's state on disk, and it is not too small for that."""
        state = self._trained * self._optimiser.state
        large = state >= SMALLEST_STATE * self._division(parts).always
        return self._state_may_wait and large and {Mean.UPDATE, Mean.SWAP} <= means

    def _allowed_divisions(self) -> list[int]:
        """Powers of two that divide the batch; 1 alone where an operator takes statistics over the batch."""
        if self._division(1).network.batch_statistics:
            return [1]
        parts = [1]
        while 2 * parts[-1] <= MOST_MICRO_BATCHES and len(self._x) % (2 * parts[-1]) == 0:
            parts.append(2 * parts[-1])
        return parts

    def _division(self, parts: int) -> _Division:
        if parts not in self._divisions:
            x = self._x[: len(self._x) // parts]
            network, constants = trace(self._module, x)
            costs = measure(network, tensors_by_name(self._module) | constants, x, self._folder)
            there = [*self._module.parameters(), *self._module.buffers(), *constants.values(), self._x]
            always = sum(t.nbytes for t in there) + int(self._trained * self._optimiser.state)
            always += LOSS_TENSORS * network.nodes[network.output].value_bytes
            always += self._trained if parts > 1 else 0
            self._divisions[parts] = _Division(parts, network, costs, constants, tuple(spans_of(network)), always)
        return self._divisions[parts]

    def _choose_from(
        self, division: _Division, means: frozenset[Mean], bits: int, state_on_disk: bool = False
    ) -> _Choices:
        early, own = Mean.UPDATE in means, self._optimiser
        spike, always, update_s = own.spike if early else 0.0, division.always, self._trained * own.seconds
        if state_on_disk:
            rates, state = division.costs.rates, int(self._trained * own.state)
            spike, always = spike + own.state, always - state
            update_s += state * (rates.encode[Coding.DISK] + rates.decode[Coding.DISK])
        facts = StepFacts(division.network, division.costs, early or division.micro_batches > 1, spike)
        options = _options(facts, division.units, recipes_of(means, bits))
        return _Choices(division, facts, options, always, state_on_disk, update_s)


def _options(facts: StepFacts, units: tuple[Span, ...], recipes: list[Recipe]) -> list[Option]:
    """Every recipe for every unit; and for units that are computed again together, the inner style that keeps least."""
    lean = max(
        (recipe.style for recipe in recipes if recipe.style.coding is Coding.EXACT), key=lambda s: (s.fuse, s.gates)
    )
    joint = [recipe for recipe in recipes if recipe.again and recipe.style == lean]
    found: list[Option] = []
    for first, unit in enumerate(units):
        for last in range(first, min(len(units), first + MOST_JOINED) if joint else first + 1):
            span = unit.joined(units[last])
            tried = recipes if last == first else joint
            if span.entry is None:
                tried = [recipe for recipe in tried if recipe.entry is Coding.EXACT]
            found += without_dominated([Option(first, last, span, r, write(facts, span, r)) for r in tried])
    return found


def plan(
    module: nn.Module,
    x: Tensor,
    budget_mib: float,
    *,
    optimiser: torch.optim.Optimizer | OptimiserOnDisk | None = None,
    means: frozenset[Mean] = ALL_MEANS,
    bits: int = 32,
    folder: str | None = None,
) -> MemoryPlan:
    """The fastest plan of a training step within a budget [MiB]; arguments and errors as those of `StepPlanner`."""
    return StepPlanner(module, x, optimiser=optimiser, folder=folder).plan(budget_mib, means=means, bits=bits)


def tensors_by_name(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of a module, under all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _check(module: nn.Module, x: Tensor, folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise UserError(f"training memory: folder '{folder}'", "no such folder", next_step="create it, or leave it out")
    tensors = [*module.parameters(), x]
    wrong = next((t for t in tensors if t.dtype != torch.float32 or t.device.type != "cpu"), None)
    if wrong is not None:
        raise UserError(
            "training memory",
            f"a tensor of {wrong.dtype} on {wrong.device}",
            allowed="torch.float32 on cpu",
            next_step="move the network and its input there, or train without a budget",
        )
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(
            f"training memory: network '{type(module).__name__}'",
            "no weight requires a gradient",
            allowed="at least one that does",
            next_step="call requires_grad_() on what is trained",
        )
