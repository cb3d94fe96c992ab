"""Exits: exact counts, the invariants of all SubNets, where heads stand and what they are, and what is refused."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir.errors import SpaceError
from tailor_ir.exits.heads import ridge
from tailor_ir.spaces.selectors import SpaceSpec
from tests.support import examples, long
from tests.support.ir.invariants import check_largest, check_subnet, difference
from tests.support.ir.networks import from_timm, perturb, small_net

SAMPLE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def exit_variable(net: tailor_ir.SuperNet) -> tailor_ir.Variable:
    return next(variable for variable in net.space.variables if variable.kind == "exit")


@cache
def compiled(name: str, head: str = "convolution") -> tuple[nn.Module, torch.Tensor, tailor_ir.SuperNet]:
    model, sample = from_timm(name)
    # gradients of positional embeddings that are interpolated are no part of the invariants
    resolution = "frozen" if "patch" in name else "auto"
    spec = {"*": "auto", "resolution": resolution, "exits": "auto", "exits.head": head}
    return model, sample, tailor_ir.compile(model, sample, spec)


# -- counts ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
@settings(max_examples=examples(10), deadline=None)
@example(blocks=3, kinds={"merged", "pruned_0.5"}, depth=True, sizes=False)
@example(blocks=3, kinds={"merged"}, depth=True, sizes=True)
@given(
    blocks=st.integers(2, 4),
    kinds=st.sets(st.sampled_from(["merged", "pruned_0.5"]), max_size=2),
    depth=st.booleans(),
    sizes=st.booleans(),
)
def test_counts_are_those_of_brute_force(blocks: int, kinds: set[str], depth: bool, sizes: bool) -> None:
    spec: SpaceSpec = {
        "exits": ["stage.1.block.*"],
        **({"alternatives": sorted(kinds)} if kinds else {}),
        **({"*.depth": "auto"} if depth else {}),
        **({"*.width_mult": [0.5, 1], "*.expand_ratio": [1, 2]} if sizes and blocks < 4 else {}),
    }
    net = tailor_ir.compile(small_net(blocks=blocks), SAMPLE, spec)
    assert len(exit_variable(net).choices) == blocks
    axes = net.structure.axis_map.axes
    seen, canonical = set(), set()
    for row in product(*(range(n) for n in net.space.cardinalities)):
        subnet = net.structure.subnet(np.array(row))
        shapes = (tuple(map(subnet.sizes.shape, (axes[name] for name in node.inputs if name))) for node in subnet.nodes)
        seen.add((tuple((node.name, node.inputs) for node in subnet.nodes), tuple(shapes), subnet.outputs))
        canonical.add(tuple(net.space.decode(np.array(row)).items()))
    assert net.space.distinct == len(seen) == len(canonical)


def test_what_lies_behind_an_exit_does_not_exist() -> None:
    net = compiled("resnet26")[2]
    heads = {node.name for node in net.structure.graph if node.name.startswith("exit/")}
    for label in map(str, exit_variable(net).choices[:-1]):
        config = net.space.canonical({"exit": label})
        later = [v for v in net.space.variables if v.name.startswith("stage.") and v.name.split(".")[1] > label[-1]]
        assert later
        assert config.keys().isdisjoint(v.name for v in later)
        smaller = {v.name: v.choices[0] for v in later}
        assert net.space.digest({"exit": label, **smaller}) == net.space.digest(config)
        names = {node.name for node in net.structure.subnet(net.space.row(config)).nodes}
        assert names & heads == {name for name in heads if name.startswith(f"exit/{label}/")}
    assert heads.isdisjoint(node.name for node in net.structure.subnet(net.space.row({})).nodes)


# -- invariants --------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "head"),
    [
        ("resnet26", "convolution"),
        long("resnet26", "light"),
        ("mobilenetv2_050", "convolution"),
        ("mobilenetv3_small_050", "light"),
        long("vit_tiny_patch16_224", "convolution"),
        long("deit_tiny_distilled_patch16_224", "light"),
    ],
)
def test_exits_keep_the_invariants(network: str, head: str, tmp_path: Path) -> None:
    model, sample, net = compiled(network, head)
    places = exit_variable(net).choices
    assert len(places) == 4
    assert places[-1] == "last"
    check_largest(net, model, sample)
    rng = np.random.default_rng(0)
    unique = net.unique_operators().keys()
    drawn = [{**net.space.sample(rng), "exit": place} for place in (*places, *places[:-1])]
    for config in [net.min_config, *map(net.space.canonical, drawn)]:
        check_subnet(net, config, tmp_path, sample)
        assert set(net.operators(config)) <= unique


@pytest.mark.long
def test_exits_and_alternatives_are_in_one_space(tmp_path: Path) -> None:
    model, sample = from_timm("resnet26")
    spec: SpaceSpec = {"*": "auto", "alternatives": ["merged", "pruned"], "exits": ["stage.[12].block.1", "stage.3*"]}
    net = tailor_ir.compile(model, sample, spec)
    assert exit_variable(net).choices == ("stage.1.block.1", "stage.2.block.1", "stage.3", "last")
    check_largest(net, model, sample)
    merged = {"exit": "stage.3", "stage.2.block.2.block": "merged_2"}
    assert "stage.2.block.1.block" not in net.space.canonical(merged)
    assert "stage.2.block.2.block" not in net.space.canonical({**merged, "exit": "stage.2.block.1"})
    assert "stage.2.block.1.block" in net.space.canonical({**merged, "exit": "stage.2.block.1"})
    rng = np.random.default_rng(1)
    for config in [net.space.canonical(merged), *(net.space.sample(rng) for _ in range(4))]:
        check_subnet(net, config, tmp_path, sample)
        assert set(net.operators(config)) <= net.unique_operators().keys()


def test_the_network_itself_keeps_its_weights_and_what_is_elastic() -> None:
    model, sample, net = compiled("resnet26")
    for name, tensor in model.state_dict().items():
        if name in net.structure.graph.initializers:
            assert torch.equal(net.elastic.tensor(name), tensor), name
    plain = tailor_ir.compile(model, sample, {"*": "auto"})
    assert [v for v in net.space.variables if v.kind != "exit"] == list(plain.space.variables)
    assert net.max_config == {**plain.max_config, "exit": "last"}
    plain.elastic.eval()
    net.elastic.eval().activate(net.max_config)
    assert torch.equal(plain.elastic(sample), net.elastic(sample))


def test_exits_are_saved_and_read(tmp_path: Path) -> None:
    net = compiled("resnet26")[2]
    net.save(tmp_path)
    again = tailor_ir.load(tmp_path)
    assert again.space.variables == net.space.variables
    config: tailor_ir.Config = {"exit": "stage.2", "stage.1.depth": -1}
    assert again.space.digest(config) == net.space.digest(config)
    assert again.operators(config) == net.operators(config)
    assert again.space.distinct == net.space.distinct


# -- heads -------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_each_exit_takes_fewer_macs_in_the_order_of_its_choices() -> None:
    for network in ("resnet26", "mobilenetv2_050", "vit_tiny_patch16_224"):
        net = compiled(network)[2]
        macs = [net.macs({"exit": choice}) for choice in exit_variable(net).choices]
        assert macs == sorted(set(macs)), network


@pytest.mark.long
def test_the_proposed_exits_stand_near_to_quarters_of_the_work() -> None:
    net = compiled("vit_tiny_patch16_224")[2]
    assert exit_variable(net).choices == ("stage.1.block.3", "stage.1.block.6", "stage.1.block.9", "last")
    assert exit_variable(compiled("resnet26")[2]).choices == ("stage.1", "stage.2", "stage.3", "last")


@pytest.mark.long
def test_a_light_head_is_a_mean_and_a_linear_layer() -> None:
    for head, operators in (
        ("convolution", ["Conv", "BatchNormalization", "Relu", "GlobalAveragePool", "Flatten", "Linear"]),
        ("light", ["GlobalAveragePool", "Flatten", "Linear"]),
    ):
        net = compiled("resnet26", head)[2]
        assert [n.op for n in net.structure.graph if n.name.startswith("exit/stage.1/")] == operators


@pytest.mark.few("resnet26")
@pytest.mark.parametrize("network", ["resnet26", "mobilenetv2_050"])
def test_the_convolution_of_a_head_is_a_small_part_of_the_network(network: str) -> None:
    net = compiled(network)[2]
    whole = net.macs(net.max_config)
    for choice in exit_variable(net).choices[:-1]:
        channels = net.structure.graph.shapes[f"exit/{choice}/convolution.weight"][0]
        convolution = next(one for one in net.operators({"exit": choice})[::-1] if one.operator == "Conv")
        assert channels % 8 == 0
        assert channels <= 128
        assert convolution.macs <= 0.1 * whole or channels == 8, choice


def test_first_weights_of_a_head_depend_on_its_place_alone() -> None:
    model = small_net()
    one, other = (tailor_ir.compile(model, SAMPLE, {"exits": places}) for places in (["stage.1.block.*"], ["*block.2"]))
    own = [name for name in other.structure.graph.parameters if name.startswith("exit/")]
    assert len(own) == 5
    assert all(torch.equal(one.elastic.tensor(name), other.elastic.tensor(name)) for name in own)
    weight = one.elastic.tensor("exit/stage.1.block.1/convolution.weight")
    assert not torch.equal(weight, one.elastic.tensor("exit/stage.1.block.2/convolution.weight"))


class ChannelsLast(nn.Module):
    """Feature maps whose channels come last, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(3)
        )
        self.classifier = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = x + block(x)
        return self.classifier(x.mean((1, 2)))


class WithProbabilities(nn.Module):
    """A network whose answer is a share of each class."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x).softmax(-1)


@pytest.mark.parametrize("head", ["convolution", "light"])
@pytest.mark.parametrize("size", [4, 16])
def test_heads_stand_on_feature_maps_with_channels_last_and_on_single_positions(
    head: str, size: int, tmp_path: Path
) -> None:
    model, sample = perturb(ChannelsLast()), torch.randn(1, 3, size, size)
    net = tailor_ir.compile(model, sample, {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"], "exits.head": head})
    first = next(node.op for node in net.structure.graph if node.name.startswith("exit/stage.1.block.1/"))
    assert first == {"convolution": "Transpose", "light": "ReduceMean"}[head]
    for config in (net.min_config, {**net.max_config, "exit": "stage.1.block.2"}):
        check_subnet(net, config, tmp_path, sample)


def test_exits_of_a_network_that_gives_probabilities_give_them_too() -> None:
    net = tailor_ir.compile(perturb(WithProbabilities()), SAMPLE, {"exits": "auto"})
    for choice in exit_variable(net).choices:
        net.elastic.eval().activate({"exit": choice})
        assert difference(net.elastic(SAMPLE).detach().sum(-1), torch.ones(1)) <= 1e-5, choice


# -- wishes ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_exits_are_asked_for_by_name_and_pattern_and_by_nothing_else() -> None:
    model = small_net(blocks=4)
    for places, found in (
        (["stage.1.block.2"], ("stage.1.block.2",)),
        (["stage.*.block.2", "stage.1.block.1"], ("stage.1.block.1", "stage.1.block.2")),
        (["stage.1.block[/blocks/blocks.2/*]"], ("stage.1.block.3",)),
        (["stage.1.block[Bottleneck]"], ("stage.1.block.1", "stage.1.block.2", "stage.1.block.3")),
    ):
        net = tailor_ir.compile(model, SAMPLE, {"exits": places})
        assert exit_variable(net).choices == (*found, "last"), places
    for spec in (None, {"*": "auto"}, {"exits": "frozen"}, {"exits": "auto", "exit": "frozen"}):
        assert not any(v.kind == "exit" for v in tailor_ir.compile(model, SAMPLE, spec).space.variables), spec
    light = tailor_ir.compile(model, SAMPLE, {"exits.head": "light"})
    assert len(exit_variable(light).choices) == 4


class Segmenter(nn.Module):
    """One number for each class and position."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.network.blocks(self.network.stem(x))
        return self.network.classifier(x.permute(0, 2, 3, 1))


class Several(nn.Module):
    """Two answers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_net()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        answer = self.network(x)
        return answer, answer.flip(0)


class Largest(nn.Module):
    """What is largest, for each channel: no layer gives numbers for classes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network.blocks(self.network.stem(x)).amax((2, 3))


class Branches(nn.Module):
    """Residual blocks in one of two branches that run side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.network = small_net(blocks=2)
        self.beside = nn.Conv2d(16, 16, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        stem = self.network.stem(x)
        joined = torch.cat([self.network.blocks(stem.relu()), self.beside(stem)], 1)
        return self.network.classifier(joined.mean((2, 3))[:, 8:24])


@pytest.mark.parametrize(
    ("make", "spec", "words"),
    [
        (Segmenter, {"exits": "auto"}, "the network gives (B, 8, 8, 5); allowed: one (B, K) for K classes"),
        (Several, {"exits": "auto"}, "the network gives (B, 5), (B, 5); allowed: one (B, K)"),
        (Largest, {"exits": "auto"}, "comes from 'ReduceMax' at"),
        (small_net, {"exits": ["stage.2"]}, "exits=stage.2: no such place; allowed: 'auto', stage.1.block.1, stage.1"),
        (small_net, {"exits": ["stage.1"]}, "multiply-accumulates with its head, not fewer than"),
        (small_net, {"exits": "all"}, "exit=all; allowed: a list of choices, 'auto' or 'frozen'"),
        (small_net, {"exits": "auto", "exits.head": "big"}, "exit.head=big; allowed: convolution, light"),
        (Branches, {"exits": ["stage.1.block.1"]}, "stage.1.block.1 lies in a branch"),
    ],
)
def test_wishes_that_cannot_be_met_are_one_line(make: type[nn.Module], spec: SpaceSpec, words: str) -> None:
    with pytest.raises(SpaceError) as raised:
        tailor_ir.compile(perturb(make()), SAMPLE, spec)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_network_without_stages_has_exits_between_its_parts(tmp_path: Path) -> None:
    model = perturb(timm.create_model("densenet121", num_classes=5, growth_rate=8, block_config=(2, 2, 2, 2)))
    sample = torch.randn(1, 3, 64, 64)
    net = tailor_ir.compile(model, sample, {"exits": "auto"})
    assert all(str(choice).startswith("block.") for choice in exit_variable(net).choices[:-1])
    check_largest(net, model, sample)
    check_subnet(net, net.min_config, tmp_path, sample)


# -- first weights from data -------------------------------------------------------------------------------------------


def test_ridge_regression_finds_a_linear_map() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((64, 12), (5, 12), (5,)))
    found, offset = ridge(x, x @ weight.T + bias)
    assert difference(weight, found) <= 1e-3
    assert difference(bias, offset) <= 1e-3
    noise = torch.randn(64, 5, generator=generator)
    assert float(ridge(x, noise)[0].abs().max()) <= 0.1 * float(torch.linalg.lstsq(x, noise).solution.abs().max())


@pytest.mark.long
@pytest.mark.parametrize("head", ["convolution", long("light")])
def test_exits_agree_more_with_the_network_after_fitting_and_leave_it_as_it_is(head: str) -> None:
    model, sample = from_timm("resnet26")
    net = tailor_ir.compile(model, sample, {"exits": "auto", "exits.head": head})
    generator = torch.Generator().manual_seed(0)
    seen, held_out = ([torch.randn(32, 3, 32, 32, generator=generator).mul(1.5) for _ in range(4)] for _ in range(2))
    before = {name: tensor.clone() for name, tensor in net.elastic.tensors().items()}
    calls: list[int] = []
    told = net.fit_exits(seen, held_out, lambda: calls.append(0))
    assert len(calls) == 4 * (tailor_ir.EXIT_PASSES + 1)
    assert [one.exit for one in told] == list(exit_variable(net).choices[:-1])
    after = net.elastic.tensors()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("exit/") for name in changed)
    x = torch.cat(held_out)
    errors = {}
    for fitted in (True, False):
        with torch.no_grad():
            for name, tensor in (after if fitted else before).items():
                net.elastic.tensor(name).copy_(tensor)
            wanted = model(x)
            for one in told:
                net.elastic.eval().activate({"exit": one.exit})
                answer = net.elastic(x)
                errors[one.exit, fitted] = float((answer - wanted).square().mean())
                if fitted:
                    assert one.agreement == float((answer.argmax(1) == wanted.argmax(1)).float().mean())
    spread = float((wanted - wanted.mean(0)).square().mean())
    for one in told:
        assert errors[one.exit, True] <= 1.1 * spread, one
        assert errors[one.exit, True] < errors[one.exit, False], one
