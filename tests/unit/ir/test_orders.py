"""Peaks of memory in planned order: bounds for populations, and plans of single SubNets."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from solvers.schedules.workload import Workload, bits
from tailor_ir.memory import Rules
from tailor_ir.memory.activations import reordered
from tailor_ir.memory.lifetimes import Walk
from tailor_ir.memory.planned_file import plan_file
from tests.support import examples
from tests.support.ir.branches import Wide, WideBlocks
from tests.support.ir.elastic_networks import NETWORKS, compiled
from tests.support.ir.runtime_memory import HERE, runtime

PLANNED = Rules(planned=True)
FREED = Rules(same_shape=False)
SIDE = 24
SMALL_BYTES = 256  # results of a few floats that the runtime keeps
seeds = st.integers(0, 2**32 - 1)
some = settings(max_examples=examples(25), deadline=None)


@pytest.fixture(scope="module")
def wide() -> Any:
    torch.manual_seed(0)
    return tailor_ir.compile(Wide(3).eval(), torch.zeros(1, 3, SIDE, SIDE))


def population(net: Any, number: int = 20) -> np.ndarray:
    codes = net.space.random_codes(number, np.random.default_rng(0))
    return np.concatenate([net.space.encode([net.max_config, net.min_config]), codes])


def workload(net: Any, code: np.ndarray) -> Workload:
    terms = net.activation_memory(PLANNED).terms
    _, load = Walk(terms, {}, net.space.extended(code[None])).workload()
    return load


def random_order(load: Workload, rng: np.random.Generator) -> list[int]:
    order: list[int] = []
    done = 0
    while ready := list(bits(load.ready(done, load.all))):
        order.append(int(rng.choice(ready)))
        done |= 1 << order[-1]
    return order


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_planned_peak_of_a_subnet_is_between_its_bounds_and_not_above_the_given_order(name: str) -> None:
    net = compiled(name)
    memory, codes = net.activation_memory(PLANNED), population(net)
    least, most = memory.bounds(codes)
    peaks = memory.peak_bytes(codes)
    assert (least <= peaks).all()
    assert (peaks <= most).all()
    assert (most <= net.activation_memory(FREED).peak_bytes(codes)).all()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_walk_without_reuse_has_the_peak_of_the_workload_in_that_order(name: str) -> None:
    net = compiled(name)
    codes = population(net, 5)
    walked = net.activation_memory(FREED).peak_bytes(codes).tolist()
    loads = [workload(net, code) for code in codes]
    assert walked == [load.peak(range(len(load.steps))) for load in loads]


@pytest.mark.long
@some
@given(seeds, st.sampled_from([*NETWORKS, "wide"]))
def test_no_order_at_all_has_less_than_the_lower_bound(wide: Any, seed: int, name: str) -> None:
    net = wide if name == "wide" else compiled(name)
    rng = np.random.default_rng(seed)
    code = net.space.random_codes(1, rng)
    load = workload(net, code[0])
    (least,), _ = net.activation_memory(PLANNED).bounds(code)
    assert least <= load.peak(random_order(load, rng))
    assert least <= max(load.least_during(step) for step in range(len(load.steps)))


@some
@given(seeds)
def test_steps_in_the_order_of_one_subnet_are_legal_in_every_other(wide: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = wide.activation_memory(PLANNED).terms
    one, other = wide.space.extended(wide.space.random_codes(2, rng))
    at, load = Walk(terms, {}, one[None]).workload()
    order = random_order(load, rng)
    moved = reordered(terms, [at[step] for step in order])
    assert int(Walk(moved, {}, one[None]).peaks()[0]) == load.peak(order)
    _, elsewhere = Walk(moved, {}, other[None]).workload()  # asserts that its order is legal
    assert len(elsewhere.steps) == len(workload(wide, other).steps)


@pytest.mark.parametrize("network", [Wide(3), WideBlocks()])
def test_the_predicted_planned_peak_is_what_the_runtime_counts_for_the_planned_file(
    network: nn.Module, tmp_path: Path
) -> None:
    net, rng = tailor_ir.compile(network.eval(), torch.zeros(1, 3, SIDE, SIDE)), np.random.default_rng(1)
    for config in (net.max_config, net.min_config, net.space.sample(rng)):
        path = tmp_path / "subnet.onnx"
        net.export(config, path, fold_batch_norm=True)
        model = onnx.load(path)
        x = rng.standard_normal(net.input_shape(config)).astype(np.float32)
        plan = plan_file(model, {model.graph.input[0].name: x})
        counted = runtime().peaks(plan.model.SerializeToString(), x, as_it_stands=True).asked
        predicted = net.peak_activation_bytes(config, Rules(channel_block=HERE.channel_block, planned=True))
        assert predicted == pytest.approx(counted, rel=0.05, abs=SMALL_BYTES)
        assert predicted <= net.peak_activation_bytes(config, HERE)
