"""Budgets: kept, refused in one line, and met with updates, micro-batches, and activations in few bits."""

import copy
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tasks.base.errors import UserError
from tasks.training.memory import (
    ALL_MEANS,
    Mean,
    OptimiserOnDisk,
    StepPlanner,
    StorageCount,
    plan,
    step,
    tensors_of,
    update_early,
)
from tasks.training.memory.planner import GRAINS, Option, fastest
from tasks.training.memory.program import SpanProgram, write
from tasks.training.memory.recipes import Coding, Recipe, Span, Style, spans_of
from tests.support.training_memory.small_networks import (
    batch,
    freeze_but_norms,
    gradients,
    lean_step,
    make,
    plain_step,
)


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1, momentum=0.9)


def test_a_budget_that_cannot_be_met_is_told_with_the_least_one() -> None:
    planner = StepPlanner(make("resnet", 0), batch()[0])
    with pytest.raises(UserError, match=r"a budget of 0\.01 MiB for 'Sequential' with a batch of 4; .*raise") as told:
        planner.plan(0.01)
    (least,) = re.findall(r"allowed: ([0-9.]+) MiB or more", str(told.value))
    assert float(least) == pytest.approx(planner.least_mib(), abs=0.06)
    with pytest.raises(UserError, match="a budget of"):
        planner.plan(planner.least_mib() * 0.99)
    assert planner.plan(planner.least_mib()).peak_mib <= planner.least_mib()


def test_less_memory_never_takes_less_time_in_prediction() -> None:
    planner = StepPlanner(make("mobilenet", 1), batch()[0])
    least_mib = planner.least_mib()
    seconds = [planner.plan(least_mib * factor).seconds for factor in (1.0, 1.2, 1.6, 100.0)]
    assert seconds == sorted(seconds, reverse=True)


def test_weights_updated_at_once_are_those_of_a_plain_step() -> None:
    module = make("vit", 0)
    module[-1].weight.requires_grad_(False)
    x, y = batch()
    plain, early = copy.deepcopy(module), copy.deepcopy(module)
    plain_optimiser, optimiser = sgd(plain), sgd(early)
    made = plan(early, x, 1e4, optimiser=optimiser, means=frozenset({Mean.UPDATE}))
    for number in range(2):
        functional.cross_entropy(plain(x), y).backward()
        plain_optimiser.step()
        plain_optimiser.zero_grad()
        with StorageCount([*tensors_of(early, optimiser), x]) as count:
            step(made, early, x, functional.cross_entropy, optimiser, y)
        for own, wanted in zip(early.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own, wanted, atol=1e-6, rtol=1e-5)
        if number:
            assert count.peak_mib == pytest.approx(made.peak_mib, rel=0.05)


@pytest.mark.few("adamw")
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_state_that_waits_on_disk_gives_the_weights_of_plain_steps_and_comes_back(kind: str) -> None:
    def made(module: nn.Module) -> torch.optim.Optimizer:
        return sgd(module) if kind == "sgd" else torch.optim.AdamW(module.parameters(), 0.01, eps=1e-3)

    module, (x, y) = make("vit", 5), batch()
    plain, lean = copy.deepcopy(module), copy.deepcopy(module)
    plain_optimiser, inner = made(plain), made(lean)
    in_memory_mib = StepPlanner(lean, x, optimiser=inner).least_mib()
    state = {"sgd": 1, "adamw": 2}[kind]
    with OptimiserOnDisk(inner) as optimiser:
        planner = StepPlanner(lean, x, optimiser=optimiser)
        saved_mib = in_memory_mib - planner.least_mib()
        weights_mib = sum(p.nbytes for p in lean.parameters()) / 2**20
        assert 0.5 * state * weights_mib < saved_mib <= 1.01 * state * weights_mib
        plan = planner.plan(planner.least_mib())
        assert plan.state_on_disk
        assert Mean.SWAP in plan.means
        for _ in range(3):
            functional.cross_entropy(plain(x), y).backward()
            plain_optimiser.step()
            plain_optimiser.zero_grad()
            with StorageCount([*tensors_of(lean, inner), x]) as count:
                step(plan, lean, x, functional.cross_entropy, optimiser, y)
            assert not any(value.dim() for kept in inner.state.values() for value in kept.values())
        assert count.peak_mib == pytest.approx(plan.peak_mib, rel=0.05)
    for own, wanted in zip(lean.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=1e-5)
    found, expected = inner.state_dict()["state"], plain_optimiser.state_dict()["state"]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


def test_state_is_in_memory_where_there_is_room_and_never_on_disk_without_being_asked_for() -> None:
    module, (x, y) = make("resnet", 6), batch()
    inner = sgd(module)
    with OptimiserOnDisk(inner) as optimiser:
        planner = StepPlanner(module, x, optimiser=optimiser)
        lean, fast = planner.plan(planner.least_mib()), planner.plan(1e4)
        assert (lean.state_on_disk, fast.state_on_disk) == (True, False)
        with pytest.raises(UserError, match="state on disk, and an optimiser that keeps it in memory"):
            step(lean, module, x, functional.cross_entropy, inner, y)
        for plan, there in ((lean, False), (fast, True), (lean, False)):
            step(plan, module, x, functional.cross_entropy, optimiser, y)
            assert all("momentum_buffer" in kept for kept in inner.state.values()) is there


def test_update_hooks_alone_give_the_weights_of_a_plain_step_and_free_gradients() -> None:
    module = make("resnet", 3)
    x, y = batch()
    plain, early = copy.deepcopy(module), copy.deepcopy(module)
    plain_optimiser, optimiser = sgd(plain), sgd(early)
    functional.cross_entropy(plain(x), y).backward()
    plain_optimiser.step()
    with update_early(early, optimiser):
        functional.cross_entropy(early(x), y).backward()
    for own, wanted in zip(early.parameters(), plain.parameters(), strict=True):
        assert own.grad is None
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=1e-5)


def test_batches_are_divided_only_where_no_statistics_are_taken_over_them() -> None:
    module = make("mobilenet", 2)
    divide = frozenset({Mean.DIVIDE})
    statistics = StepPlanner(module, batch()[0])
    assert statistics.plan(statistics.least_mib(means=divide), means=divide).micro_batches == 1
    module.eval()
    fixed = StepPlanner(module, batch()[0])
    made = fixed.plan(fixed.least_mib(means=divide), means=divide)
    assert made.micro_batches == 4
    assert made.means == divide
    plain, _ = plain_step(module)
    lean, counted_mib = lean_step(made, module)
    torch.testing.assert_close(gradients(lean), gradients(plain), atol=1e-6, rtol=1e-5)
    assert counted_mib == pytest.approx(made.peak_mib, rel=0.05)
    optimiser = sgd(plain)
    optimiser.step()
    early = copy.deepcopy(module)
    both = divide | {Mean.UPDATE}
    made = fixed.plan(fixed.least_mib(means=both), means=both)
    assert made.micro_batches == 4
    x, y = batch()
    step(made, early, x, functional.cross_entropy, sgd(early), y)
    for own, wanted in zip(early.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("family", "adapting"), [("resnet", True), ("mobilenet", False), ("vit", False)])
def test_eight_bits_for_all_activations_keep_the_direction_of_gradients(family: str, adapting: bool) -> None:
    module = make(family, 11)
    if adapting:
        freeze_but_norms(module)
    exact = plan(module, batch()[0], 1e4, means=frozenset())
    recipe = Recipe(Style(Coding.EIGHT, fuse=True, gates=True))
    units = spans_of(exact.facts.network)
    options = tuple(Option(n, n, unit, recipe, write(exact.facts, unit, recipe)) for n, unit in enumerate(units))
    made = replace(exact, options=options)
    assert made.lossy
    assert not exact.lossy
    plain, _ = plain_step(module)
    lean, counted_mib = lean_step(made, module)
    cosine = float(functional.cosine_similarity(gradients(lean), gradients(plain), dim=0))
    assert 0.99 <= cosine < 1 - 1e-7
    _, exact_mib = lean_step(exact, module)
    assert counted_mib < exact_mib


@pytest.mark.long
def test_a_plan_is_for_its_batch_and_for_networks_that_train() -> None:
    module, (x, y) = make("vit", 1), batch()
    made = plan(module, x, 1e4, means=ALL_MEANS)
    with pytest.raises(UserError, match=r"a batch of 2; allowed: 4"):
        step(made, module, x[:2], functional.cross_entropy, target=y[:2])
    with pytest.raises(UserError, match="no weight requires a gradient"):
        StepPlanner(module.requires_grad_(False), x)
    with pytest.raises(UserError, match="no such folder"):
        StepPlanner(module, x, folder="/no/such")
    with pytest.raises(UserError, match=r"torch\.float64"):
        StepPlanner(module, x.double())


@pytest.mark.parametrize("seed", range(6))
def test_choice_of_recipes_is_that_of_trying_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = 4

    def option(first: int, last: int) -> Option:
        held, forward, backward = (int(n) for n in rng.integers(1, 60, 3))
        sizes = [GRAINS * size for size in (held + forward, held + backward, held, 5)]
        program = SpanProgram((), (), sizes[0], sizes[1], sizes[2], sizes[3], float(rng.integers(1, 100)))
        return Option(first, last, Span(first, last + 1, None, last), Recipe(), program)

    options = [
        option(first, last) for first in range(units) for last in range(first, min(units, first + 2)) for _ in range(3)
    ]
    weights = [5 * GRAINS * (units - unit) for unit in range(units + 1)]

    def seconds(path: tuple[Option, ...], budget: int) -> float:
        held = 0
        for each in path:
            peak = max(each.program.forward_peak, each.program.backward_peak + weights[each.last + 1])
            if held + peak > budget * GRAINS:
                return np.inf
            held += each.program.held
        return sum(each.program.seconds for each in path)

    paths = [
        path
        for count in range(1, units + 1)
        for path in itertools.product(options, repeat=count)
        if path[0].first == 0
        and path[-1].last == units - 1
        and all(a.last + 1 == b.first for a, b in itertools.pairwise(path))
    ]
    for budget in (60, 90, 130, 200):
        best = min(seconds(path, budget) for path in paths)
        found = fastest(options, units, budget * GRAINS)
        assert (np.inf if found is None else sum(o.program.seconds for o in found)) == best
