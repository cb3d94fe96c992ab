"""Methods within a budget of memory give what they give without, and refuse what they cannot keep."""

import re

import pytest
import torch

from tasks.adaptation import AdaptiveSubnet, MethodName, MethodSettings, make_method
from tasks.adaptation.methods import Budgeted
from tasks.base.errors import UserError
from tasks.training.memory import StorageCount
from tests.support.adaptation.small_subnets import batches, smallest, supernet

GRADIENT_METHODS: tuple[MethodName, ...] = ("tent", "eata", "sar", "cotta", "roid")


def settings(name: MethodName, memory_mib: float | None = None) -> MethodSettings:
    options = {"method": name, "learning_rate": 0.01, "views": 2, "entropy_share": 1.0, "recover_below": 0.0}
    return MethodSettings.model_validate({**options, "memory_mib": memory_mib})


@pytest.mark.long_cases("cotta")
@pytest.mark.parametrize("name", GRADIENT_METHODS)
def test_steps_within_a_budget_are_those_without_bit_by_bit(name: MethodName) -> None:
    net, images = supernet("batch"), batches(2, 32)
    plain = make_method(AdaptiveSubnet.of(net, smallest(net)), settings(name), batches(1, 2))
    with pytest.raises(UserError, match=r"memory_mib=0\.01 for batches of 32 images: .*raise") as told:
        make_method(AdaptiveSubnet.of(net, smallest(net)), settings(name, 0.01), batches(1, 2)).adapt(images[0])
    (least, without) = map(float, re.findall(r"([0-9.]+) MiB", str(told.value))[:2])
    budget_mib = 0.5 * (least + without)
    lean = make_method(AdaptiveSubnet.of(net, smallest(net)), settings(name, budget_mib), batches(1, 2))
    assert isinstance(lean, Budgeted)
    for x in images:
        torch.testing.assert_close(lean.adapt(x), plain.adapt(x), atol=0, rtol=0)
    wanted, found = plain.subnet.state(), lean.subnet.state()
    assert wanted
    assert wanted.keys() == found.keys()
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
    (plan,) = lean.plans.values()
    assert plan.kept_bytes is not None
    assert plan.peak_mib <= budget_mib < plan.plain_mib


def test_the_peak_of_a_step_is_the_predicted_one() -> None:
    net, x = supernet("batch"), batches(1, 64)[0]
    subnet = AdaptiveSubnet.of(net, smallest(net))
    plain = make_method(subnet, settings("tent"), [])
    with StorageCount() as idle:
        plain.adapt(x)
    method = make_method(AdaptiveSubnet.of(net, smallest(net)), settings("tent", 0.8 * idle.peak_mib), [])
    method.adapt(x)
    assert isinstance(method, Budgeted)
    (plan,) = method.plans.values()
    there = [*method.subnet.network.parameters(), *method.subnet.network.buffers(), *method.subnet.source.values(), x]
    with StorageCount(there) as count:
        method.adapt(x)
    assert count.peak_mib == pytest.approx(plan.peak_mib, rel=0.05)


def test_tensors_of_the_method_count_once_in_the_prediction() -> None:
    net, x = supernet("layer"), batches(1, 2)[0]
    method = make_method(AdaptiveSubnet.of(net, net.max_config), settings("tent", 1e4), [])
    method.adapt(x)
    assert isinstance(method, Budgeted)
    (plan,) = method.plans.values()
    subnet = method.subnet
    with StorageCount([*subnet.network.parameters(), *subnet.network.buffers(), *subnet.source.values(), x]) as count:
        method.adapt(x)
    assert plan.peak_mib == plan.plain_mib == pytest.approx(count.peak_mib, rel=0.05)
