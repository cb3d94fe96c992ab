"""Exact means give plain torch's gradients, and need the memory that was predicted."""

import pytest
import torch

from tasks.training_memory import ALL_MEANS, Mean, Planner
from tests.training_memory.small_networks import (
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


@pytest.mark.parametrize(("seed", "family", "adapting"), [(seed, *case) for seed, case in enumerate(CASES)])
def test_gradients_are_those_of_plain_torch_and_the_peak_is_as_predicted(
    seed: int, family: str, adapting: bool
) -> None:
    module = make(family, seed)
    if adapting:
        freeze_but_norms(module)
    plain, _ = plain_step(module)
    planner = Planner(module, batch()[0])
    for means in MEANS:
        for budget_mib in (planner.least_mib(means=means), 1e4):
            plan = planner.plan(budget_mib, means=means)
            lean, counted_mib = lean_step(plan, module)
            torch.testing.assert_close(gradients(lean), gradients(plain), atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(buffers(lean), buffers(plain), atol=1e-6, rtol=1e-6)
            assert counted_mib == pytest.approx(plan.peak_mib, rel=0.05), (means, budget_mib)
            assert plan.peak_mib <= budget_mib


@pytest.mark.parametrize("family", ["resnet", "vit"])
def test_all_exact_means_together_need_less_than_plain_training(family: str) -> None:
    module = make(family, 7)
    planner = Planner(module, batch()[0])
    means = ALL_MEANS - {Mean.UPDATE}
    _, plain_mib = plain_step(module)
    _, counted_mib = lean_step(planner.plan(planner.least_mib(means=means), means=means), module)
    assert counted_mib < 0.9 * plain_mib
