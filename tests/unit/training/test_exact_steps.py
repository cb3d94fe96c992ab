"""Exact means give plain torch's gradients, and need the memory that was predicted."""

import copy
from dataclasses import replace

import pytest
import torch
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn import functional

from profiling_agents.messages import MIB
from tasks.training.memory import ALL_MEANS, Mean, StepPlanner, program, step
from tasks.training.memory.operators import layers
from tasks.training.memory.planner import Option
from tasks.training.memory.program import instructions as values_of_spans
from tasks.training.memory.program import writer as gradients_of_spans
from tasks.training.memory.recipes import Coding, Recipe, Style, spans_of
from tests.support.training_memory.small_networks import (
    CLASSES,
    SIZE,
    batch,
    buffers,
    freeze_but_norms,
    gradients,
    lean_step,
    make,
    plain_step,
)

MEANS = [frozenset({mean}) for mean in Mean if mean is not Mean.UPDATE] + [ALL_MEANS - {Mean.UPDATE}]
CASES = [(family, adapting) for family in ("resnet", "mobilenet", "vit") for adapting in (False, True)]


@pytest.mark.few("2-mobilenet-False", "3-mobilenet-True")
@pytest.mark.parametrize(("seed", "family", "adapting"), [(seed, *case) for seed, case in enumerate(CASES)])
def test_gradients_are_those_of_plain_torch_and_the_peak_is_as_predicted(
    seed: int, family: str, adapting: bool
) -> None:
    module = make(family, seed)
    if adapting:
        freeze_but_norms(module)
    plain, _ = plain_step(module)
    planner = StepPlanner(module, batch()[0])
    for means in MEANS:
        for budget_mib in (planner.least_mib(means=means), 1e4):
            plan = planner.plan(budget_mib, means=means)
            lean, counted_mib = lean_step(plan, module)
            torch.testing.assert_close(gradients(lean), gradients(plain), atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(buffers(lean), buffers(plain), atol=1e-6, rtol=1e-6)
            assert counted_mib == pytest.approx(plan.peak_mib, rel=0.05), (means, budget_mib)
            assert plan.peak_mib <= budget_mib


@pytest.mark.parametrize("family", ["mobilenet", "vit"])
def test_what_is_computed_again_gives_the_same_gradients_to_the_last_bit(family: str) -> None:
    module = make(family, 9)
    planner = StepPlanner(module, batch()[0])
    means = frozenset({Mean.RECOMPUTE})
    plans = (planner.plan(1e4, means=frozenset()), planner.plan(planner.least_mib(means=means), means=means))
    kept, again = (gradients(lean_step(plan, module)[0]) for plan in plans)
    assert plans[1].peak_mib < plans[0].peak_mib
    assert torch.equal(kept, again)


@pytest.mark.few("resnet")
@pytest.mark.parametrize("family", ["resnet", "vit"])
def test_all_exact_means_together_need_less_than_plain_training(family: str) -> None:
    module = make(family, 7)
    planner = StepPlanner(module, batch()[0])
    means = ALL_MEANS - {Mean.UPDATE}
    _, plain_mib = plain_step(module)
    _, counted_mib = lean_step(planner.plan(planner.least_mib(means=means), means=means), module)
    assert counted_mib < 0.9 * plain_mib


def test_gradients_of_batch_norms_may_overwrite_those_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients_of_spans, "SMALLEST_IN_PLACE_BYTES", 0)
    module = make("mobilenet", 8)
    planner = StepPlanner(module, batch()[0])
    means = frozenset({Mean.FUSE, Mean.ENCODE, Mean.RECOMPUTE})
    plan = planner.plan(planner.least_mib(means=means), means=means)
    nodes = plan.facts.network.nodes
    written = [instruction for option in plan.options for instruction in option.program.backward]
    backward = [each for each in written if each.in_place and each.do is program.Do.BACKWARD]
    assert "batch_norm" in {nodes[each.node].operator for each in backward}
    plain, _ = plain_step(module)
    lean, counted_mib = lean_step(plan, module)
    torch.testing.assert_close(gradients(lean), gradients(plain), atol=1e-6, rtol=1e-5)
    assert counted_mib == pytest.approx(plan.peak_mib, rel=0.05)


@pytest.mark.parametrize(("family", "adapting"), [("resnet", True), ("resnet", False), ("mobilenet", False)])
@pytest.mark.parametrize("again", [True, False])
def test_what_waits_on_disk_inside_a_span_comes_back_exactly(
    family: str, adapting: bool, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every span by the recipe with the least memory, which small tensors are not worth otherwise."""
    monkeypatch.setattr(gradients_of_spans, "SMALLEST_IN_PLACE_BYTES", 0)
    monkeypatch.setattr(values_of_spans, "SMALLEST_CODED_BYTES", 0)
    monkeypatch.setattr(layers, "IN_PLACE_BYTES", 2048)
    module = make(family, 4)
    if adapting:
        freeze_but_norms(module)
    plan = StepPlanner(module, batch()[0]).plan(1e4, means=frozenset())
    style = Style(Coding.DISK, fuse=True, gates=True, late=True)
    options = []
    for number, unit in enumerate(spans_of(plan.facts.network)):
        recipe = Recipe(style, again, Coding.DISK if again and unit.entry is not None else Coding.EXACT)
        options.append(Option(number, number, unit, recipe, program.write(plan.facts, unit, recipe)))
    written = [instruction for option in options for instruction in option.program.backward]
    assert {program.Do.READ, program.Do.PARK} <= {each.do for each in written} or not again
    assert any(program.Join.ONTO in each.joins for each in written)
    assert any(each.into_input for each in written) or family == "mobilenet"
    plain, _ = plain_step(module)
    peak, _ = program.total(option.program for option in options)
    always = plan.peak_mib - program.total(option.program for option in plan.options)[0] / MIB
    lean, counted_mib = lean_step(replace(plan, options=tuple(options)), module)
    torch.testing.assert_close(gradients(lean), gradients(plain), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(buffers(lean), buffers(plain), atol=1e-6, rtol=1e-6)
    assert counted_mib == pytest.approx(always + peak / MIB, rel=0.05)


class TwoReads(nn.Module):
    """A linear layer that is read twice, with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.shared = nn.Linear(3 * SIZE * SIZE, 64), nn.Linear(64, 64)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.shared(self.first(x.flatten(1)).relu())
        return self.last(self.shared(self.dropout(functional.gelu(x))))


def test_weights_that_are_read_twice_are_updated_once() -> None:
    module = TwoReads()
    module.dropout.p = 0.0
    x, y = batch()
    plain, early = copy.deepcopy(module), copy.deepcopy(module)
    plain_optimiser, optimiser = (torch.optim.SGD(each.parameters(), 0.1) for each in (plain, early))
    functional.cross_entropy(plain(x), y).backward()
    plain_optimiser.step()
    planner = StepPlanner(early, x, optimiser=optimiser)
    step(planner.plan(planner.least_mib()), early, x, functional.cross_entropy, optimiser, y)
    for own, wanted in zip(early.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("behind", [nn.Identity(), DropPath(0.5)])
def test_what_is_dropped_stays_dropped_when_it_is_computed_again(behind: nn.Module) -> None:
    module = nn.Sequential(TwoReads(), behind, nn.Linear(CLASSES, CLASSES)).train()
    planner = StepPlanner(module, batch()[0])
    means = frozenset({Mean.FUSE, Mean.RECOMPUTE, Mean.ENCODE})
    found = []
    for plan in (planner.plan(1e4, means=frozenset()), planner.plan(planner.least_mib(means=means), means=means)):
        torch.manual_seed(1)
        found.append(gradients(lean_step(plan, module)[0]))
    assert bool(found[0].any())
    torch.testing.assert_close(found[1], found[0], atol=1e-6, rtol=1e-5)
