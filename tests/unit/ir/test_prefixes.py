"""SubNets that run together: the same as one by one to the last digit, each common step once, memory within the limit."""

from collections import deque
from itertools import accumulate
from typing import Any, Self

import numpy as np
import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

import tailor_ir
from tailor_ir.subnets.prefixes import Config, Prefixes, groups
from tests.support import examples
from tests.support.ir.elastic_networks import NETWORKS, compiled
from tests.support.ir.networks import perturb, small_net

pytestmark = pytest.mark.usefixtures("one_thread")

MIB = 2**20
FAMILIES = ("test_resnet", "test_efficientnet", "test_vit")
REPLACED = "blocks and their alternatives"
NAMES = (*FAMILIES, *NETWORKS, REPLACED)
_nets: dict[str, tailor_ir.SuperNet] = {}


def net_of(name: str) -> tailor_ir.SuperNet:
    """A SuperNet, compiled once for all tests."""
    if name not in _nets:
        if name in FAMILIES:
            torch.manual_seed(0)
            size: dict[str, Any] = {"img_size": 64} if name == "test_vit" else {}
            model = perturb(timm.create_model(name, num_classes=10, **size))
            _nets[name] = tailor_ir.compile(model, torch.zeros(1, 3, 64, 64))
        elif name == REPLACED:
            sizes = {"alternatives": "auto", "*.depth": "auto", "*.expand_ratio": "auto"}
            _nets[name] = tailor_ir.compile(small_net(), torch.zeros(1, 3, 32, 32), sizes)
        else:
            _nets[name] = compiled(name)
        _nets[name].elastic.eval()
    return _nets[name]


def sweep(net: tailor_ir.SuperNet) -> list[Config]:
    """The largest SubNet and every other choice of each variable but the resolution."""
    return [
        net.max_config | {variable.name: choice}
        for variable in net.space.variables
        if variable.kind != "resolution"
        for choice in variable.choices
    ]


def candidates(net: tailor_ir.SuperNet, seed: int, count: int) -> list[Config]:
    """Random SubNets of one resolution, each with a few variables changed from the one before."""
    rng = np.random.default_rng(seed)
    config = net.space.max_config | net.space.sample(rng)
    resolution = {v.name: config[v.name] for v in net.space.variables if v.kind == "resolution"}
    found = []
    for _ in range(count):
        found.append(config)
        other = net.space.max_config | net.space.sample(rng)
        changed = rng.choice(list(config), size=rng.integers(0, 4))
        config = config | {name: other[name] for name in changed} | resolution
    return found


def inputs(net: tailor_ir.SuperNet, config: Config, seed: int, count: int) -> list[torch.Tensor]:
    """Batches of different sizes at the config's resolution."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(net.input_shape(config, 4 - index % 2), generator=generator) for index in range(count)]


class Watched:
    """What torch allocates inside: the most bytes at once; and how often convolutions and matrix products run."""

    def __enter__(self) -> Self:
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        assert self._profile.profiler is not None
        results = self._profile.profiler.kineto_results
        assert results is not None
        events: list[Any] = sorted(results.events(), key=lambda event: event.start_ns())
        changes = [event.nbytes() for event in events if event.name() == "[memory]"]
        self.products = sum(event.name() in ("aten::convolution", "aten::linear") for event in events)
        self.peak_bytes = max(accumulate(changes))


def one_by_one(
    net: tailor_ir.SuperNet, configs: list[Config], batches: list[torch.Tensor], x: torch.Tensor
) -> tuple[list[dict[str, torch.Tensor]], list[torch.Tensor]]:
    """Statistics and outputs."""
    statistics = [net.recalibrate(config, batches) for config in configs]
    outputs = []
    for config, own in zip(configs, statistics, strict=True):
        net.elastic.activate(config, own)
        outputs.append(net.elastic(x))
    return statistics, outputs


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 10_000),
    count=st.integers(1, 9),
    batches=st.integers(1, 3),
    kept_mib=st.sampled_from([0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 1024.0]),
)
@torch.no_grad()
def test_statistics_and_outputs_are_those_of_each_subnet_alone(
    name: str, seed: int, count: int, batches: int, kept_mib: float
) -> None:
    net = net_of(name)
    configs = candidates(net, seed, count)
    *calibration, x = inputs(net, configs[0], seed, batches + 1)
    statistics, outputs = one_by_one(net, configs, calibration, x)
    together = Prefixes(net.elastic, configs, kept_mib)
    found = together.observe(calibration)
    together.activate(found)
    answers = dict(together(x))
    assert sorted(answers) == list(range(count))
    for position in range(count):
        assert found[position].keys() == statistics[position].keys()
        for key, expected in statistics[position].items():
            assert torch.equal(found[position][key], expected), (configs[position], key)
        assert torch.equal(answers[position], outputs[position]), configs[position]
    assert together.peak_bytes <= kept_mib * MIB


@pytest.mark.long_cases("test_resnet", "test_vit")
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_without_statistics_of_their_own_subnets_use_the_stored_ones(name: str) -> None:
    net = net_of(name)
    configs = candidates(net, 1, 5)
    (x,) = inputs(net, configs[0], 1, 1)
    for position, found in Prefixes(net.elastic, configs)(x):
        net.elastic.activate(configs[position])
        assert torch.equal(found, net.elastic(x))


@pytest.mark.few("test_efficientnet")
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_every_step_that_subnets_have_in_common_runs_once(name: str) -> None:
    net = net_of(name)
    configs = sweep(net)
    (x,) = inputs(net, configs[0], 2, 1)
    with Watched() as alone:
        for config in configs:
            net.elastic.activate(config)
            net.elastic(x)
    programs = [net.elastic.program(config).instructions for config in configs]
    different = {steps[: index + 1] for steps in programs for index in range(len(steps))}
    share = len(different) / sum(map(len, programs))
    with Watched() as watched:
        assert len(list(Prefixes(net.elastic, configs)(x))) == len(configs)
    assert share < 0.75
    assert watched.products == pytest.approx(share * alone.products, rel=0.15)
    with Watched() as recomputed:
        list(Prefixes(net.elastic, configs, kept_mib=0)(x))
    assert watched.products < recomputed.products <= alone.products


@pytest.mark.few(3)
@pytest.mark.parametrize("kept_mib", [0.0, 0.05, 0.2, 1.0, 8.0])
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_memory_is_that_of_one_subnet_and_what_may_be_kept(name: str, kept_mib: float) -> None:
    net = net_of(name)
    configs = sweep(net)
    (x,) = inputs(net, configs[0], 3, 1)
    peaks = []
    for config in configs:
        net.elastic.activate(config)
        with Watched() as watched:
            net.elastic(x)
        peaks.append(watched.peak_bytes)
    together = Prefixes(net.elastic, configs, kept_mib)
    statistics = together.observe([x])
    together.activate(statistics)
    with Watched() as watched:
        ((_, output),) = deque(together(x), maxlen=1)
    assert watched.peak_bytes > 0.5 * max(peaks)
    assert together.peak_bytes <= kept_mib * MIB
    assert watched.peak_bytes <= max(peaks) + kept_mib * MIB + output.nbytes
    if kept_mib == 8.0:
        assert together.peak_bytes < 3 * x.nbytes * 16  # a few branches at a time, not one for each SubNet
        assert together.peak_bytes > 0


@torch.no_grad()
def test_subnets_share_the_statistics_that_are_equal_and_nothing_of_the_network_is_written() -> None:
    net = net_of("test_resnet")
    configs = sweep(net)
    net.elastic.activate(net.min_config)
    before = {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    x = inputs(net, net.min_config, 4, 1)[0]
    expected = net.elastic(x)
    statistics = Prefixes(net.elastic, configs).observe(inputs(net, configs[0], 4, 2))
    tensors = [tensor for own in statistics for tensor in own.values()]
    assert len({id(tensor) for tensor in tensors}) < 0.75 * len(tensors)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.elastic.tensors().items())
    assert torch.equal(net.elastic(x), expected)


@torch.no_grad()
def test_training_mode_changes_nothing() -> None:
    net = net_of("test_resnet")
    configs = candidates(net, 5, 4)
    *calibration, x = inputs(net, configs[0], 5, 3)
    statistics, outputs = one_by_one(net, configs, calibration, x)
    net.elastic.train()
    together = Prefixes(net.elastic, configs)
    together.activate(together.observe(calibration))
    assert all(torch.equal(found, outputs[position]) for position, found in together(x))
    assert net.elastic.training
    net.elastic.eval()
    assert all(statistics)


def test_without_batch_norm_no_batch_is_read() -> None:
    net = net_of("attention, linear and LayerNorm")
    unread = iter([torch.zeros(0)])
    assert Prefixes(net.elastic, candidates(net, 6, 3)).observe(unread) == [{}, {}, {}]
    assert len(list(unread)) == 1


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(name=st.sampled_from(FAMILIES), seed=st.integers(0, 10_000), most=st.integers(1, 40))
def test_groups_have_every_subnet_once_and_one_resolution_and_an_instruction_in_common(
    name: str, seed: int, most: int
) -> None:
    net = net_of(name)
    rng = np.random.default_rng(seed)
    configs = [net.space.sample(rng) for _ in range(int(rng.integers(0, 30)))]
    configs += [config for config in sweep(net) if rng.random() < 0.5]
    found = groups(net.elastic, configs, most)
    assert sorted(position for group in found for position in group) == list(range(len(configs)))
    for group in found:
        assert 1 <= len(group) <= most
        assert len({net.input_shape(configs[position]) for position in group}) == 1
        assert len({net.elastic.program(configs[position]).instructions[0] for position in group}) == 1


def test_a_row_of_similar_subnets_is_parted_where_neighbours_share_least() -> None:
    net = net_of("test_resnet")
    configs = sweep(net)
    steps = [net.elastic.program(config).instructions for config in configs]

    def work(group: list[int]) -> int:
        return len({steps[position][: index + 1] for position in group for index in range(len(steps[position]))})

    found = groups(net.elastic, configs, 8)
    alone = sum(map(len, steps))
    whole = work(list(range(len(configs))))
    assert len(found) >= len(configs) / 8
    assert whole <= sum(map(work, found)) < whole + 0.5 * (alone - whole)
