"""Learned transforms of kernels, against the formula of OFA (ICLR 2020) §3.3 written by hand."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir.spaces.selectors import Config, SpaceSpec
from tailor_ir.summary import Describer
from tasks.report.view.gather import gather
from tests.support.ir.elastic_networks import Convolutional, Residual, UsedTwice, inverted
from tests.support.ir.invariants import check_largest, check_subnet, difference
from tests.support.ir.networks import from_timm, perturb

FORMULA_TOLERANCE = 1e-5  # relative to the largest value, fp32
GRADIENT_TOLERANCE = 1e-4  # relative to the largest gradient of the tensor, fp32
SORTED_TOLERANCE = 1e-5
SAMPLE = torch.zeros(1, 3, 32, 32)
WISH = {"*.depth": [-1, 0], "*.kernel_size": [3, 5, 7], "*.expand_ratio": [1, 2]}


def two_blocks() -> nn.Module:
    """Stem of 16 channels, two blocks with depthwise kernels of 7 over 32 channels, classifier."""
    torch.manual_seed(0)
    return perturb(Convolutional(inverted(7), inverted(7)))


def transformed(model: nn.Module, wish: SpaceSpec | None = None) -> tailor_ir.SuperNet:
    """A SuperNet with learned transforms, in eval mode."""
    net = tailor_ir.compile(model, SAMPLE, wish, kernel_transform=True)
    net.elastic.eval()
    return net


@torch.no_grad()
def scramble(net: tailor_ir.SuperNet, seed: int = 5) -> None:
    """Random matrices, far from the identity."""
    generator = torch.Generator().manual_seed(seed)
    for matrix in net.kernel_matrices:
        matrix.copy_(torch.randn(matrix.shape, generator=generator) / len(matrix) ** 0.5)


def every_config(net: tailor_ir.SuperNet) -> Iterator[Config]:
    """All combinations of choices."""
    variables = net.space.variables
    for choices in product(*(variable.choices for variable in variables)):
        yield {variable.name: choice for variable, choice in zip(variables, choices, strict=True)}


def transformed_by_hand(
    kernel: torch.Tensor, wanted: int, matrices: dict[tuple[int, int], torch.Tensor]
) -> torch.Tensor:
    """(O, I, K, K) -> (O, I, k, k), K = 7: the sum over the centre's positions, position by position."""
    for larger, smaller in ((7, 5), (5, 3)):
        if smaller < wanted:
            break
        rows = []
        for position in range(smaller**2):
            weights = matrices[larger, smaller][position].view(smaller, smaller)
            rows.append((kernel[:, :, 1:-1, 1:-1] * weights).sum((2, 3)))
        kernel = torch.stack(rows, -1).view(*kernel.shape[:2], smaller, smaller)
    return kernel


def subnet_by_hand(
    model: nn.Module, net: tailor_ir.SuperNet, config: Config, x: torch.Tensor, matrices: list[torch.Tensor]
) -> torch.Tensor:
    """The SubNet's function from the original module's parameters, without the IR."""
    config = net.space.max_config | config
    blocks = [b.body for b in model.blocks]  # type: ignore[union-attr]
    x = torch.relu(model.stem(x))  # type: ignore[operator]
    for number, body in enumerate(blocks[: len(blocks) + int(config["stage.1.depth"])], start=1):
        hidden = round(16 * float(config[f"stage.1.block.{number}.expand_ratio"]))
        size = int(config[f"stage.1.block.{number}.kernel_size"])
        steps = {(7, 5): matrices[2 * number - 2], (5, 3): matrices[2 * number - 1]}
        expand, depthwise, project = body[0], body[3], body[6]
        kernel = transformed_by_hand(depthwise.weight[:hidden], size, steps)
        y = F.conv2d(x, expand.weight[:hidden], expand.bias[:hidden])
        y = torch.relu(_norm(body[1], y, hidden))
        y = F.conv2d(y, kernel, depthwise.bias[:hidden], padding=size // 2, groups=hidden)
        y = torch.relu(_norm(body[4], y, hidden))
        x = x + F.conv2d(y, project.weight[:, :hidden], project.bias)
    return model.head(x.mean((2, 3)))  # type: ignore[operator]


def _norm(norm: nn.BatchNorm2d, x: torch.Tensor, channels: int) -> torch.Tensor:
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None
    assert variance is not None
    return F.batch_norm(x, mean[:channels], variance[:channels], norm.weight[:channels], norm.bias[:channels])


# -- what it computes --------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_every_subnet_starts_as_the_centre_of_the_kernel() -> None:
    plain = tailor_ir.compile(two_blocks(), SAMPLE, WISH)
    plain.elastic.eval()
    net = transformed(two_blocks(), WISH)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    configs = list(every_config(net))
    assert len(configs) == 2 * 3**2 * 2**2
    for config in configs:
        plain.elastic.activate(config)
        net.elastic.activate(config)
        assert torch.equal(net.elastic(x), plain.elastic(x)), config


def test_the_largest_subnet_is_the_original_whatever_the_matrices_are() -> None:
    net = transformed(two_blocks())
    scramble(net)
    check_largest(net, two_blocks(), SAMPLE)


@torch.no_grad()
def test_every_subnet_follows_the_formula() -> None:
    model, net = two_blocks(), transformed(two_blocks(), WISH)
    scramble(net)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    outputs = []
    for config in every_config(net):
        net.elastic.activate(config)
        outputs.append(net.elastic(x))
        expected = subnet_by_hand(model, net, config, x, list(net.kernel_matrices))
        assert difference(expected, outputs[-1]) <= FORMULA_TOLERANCE, config
        assert difference(expected, net.build(config)(x)) <= FORMULA_TOLERANCE, config
    different = {tuple(output.flatten().tolist()) for output in outputs}
    assert len(different) == net.space.distinct, "every SubNet has an answer of its own"


def test_elastic_built_and_exported_are_one_function(tmp_path: Path) -> None:
    net = transformed(two_blocks())
    scramble(net)
    rng = np.random.default_rng(0)
    for config in [net.min_config, *(net.space.sample(rng) for _ in range(4))]:
        check_subnet(net, config, tmp_path, SAMPLE)


def test_a_built_subnet_has_the_resulting_kernel_and_no_matrix() -> None:
    net, plain = transformed(two_blocks(), WISH), tailor_ir.compile(two_blocks(), SAMPLE, WISH)
    scramble(net)
    config = {"stage.1.block.1.kernel_size": 3, "stage.1.block.2.kernel_size": 5}
    own, other = net.build(config), plain.build(config)
    assert [(n, p.shape) for n, p in own.named_parameters()] == [(n, p.shape) for n, p in other.named_parameters()]


@pytest.mark.parametrize("config", [{}, {"stage.1.block.1.kernel_size": 3}, {"stage.1.block.2.kernel_size": 5}, "min"])
def test_gradients_reach_matrices_and_kernels_as_in_the_formula(config: Config | str) -> None:
    model, net = two_blocks(), transformed(two_blocks(), WISH)
    scramble(net)
    chosen = net.min_config if isinstance(config, str) else config
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    matrices = [matrix.detach().clone().requires_grad_() for matrix in net.kernel_matrices]
    direction = torch.randn(2, 5, generator=torch.Generator().manual_seed(3))
    (subnet_by_hand(model, net, chosen, x, matrices) * direction).sum().backward()
    net.elastic.activate(chosen)
    (net.elastic(x) * direction).sum().backward()
    pairs = [(p.grad, net.elastic.tensor(name).grad) for name, p in model.named_parameters()]
    pairs += [(a.grad, b.grad) for a, b in zip(matrices, net.kernel_matrices, strict=True)]
    assert sum(expected is not None for expected, _ in pairs) > 10
    for expected, found in pairs:
        if expected is None:  # of a skipped block, or a step that is not taken
            assert found is None
        else:
            assert found is not None
            assert difference(expected, found) <= GRADIENT_TOLERANCE


def test_only_the_steps_that_are_taken_have_gradients() -> None:
    net = transformed(two_blocks(), WISH)
    names = [f"blocks.{block}.body.3.weight.{step}" for block in (0, 1) for step in ("7to5", "5to3")]
    assert [name for name in net.structure.graph.parameters if "to" in name] == names
    for sizes, expected in (((7, 7), ""), ((5, 7), names[0]), ((3, 7), f"{names[0]} {names[1]}")):
        net.elastic.zero_grad()
        net.elastic.activate({f"stage.1.block.{i}.kernel_size": size for i, size in enumerate(sizes, start=1)})
        net.elastic(torch.randn(2, 3, 32, 32)).sum().backward()
        assert [name for name in names if net.elastic.tensor(name).grad is not None] == expected.split()


# -- which kernels have one --------------------------------------------------------------------------------------------


class Sequence(nn.Module):
    """Two residual convolutions over a sequence or a volume, then a classifier."""

    def __init__(self, stem: nn.Module, *bodies: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = stem, nn.Sequential(*map(Residual, bodies)), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).flatten(2).mean(2))


def _body(layer: type[nn.Module], kernel: int, groups: int) -> nn.Module:
    return nn.Sequential(
        layer(8, 16, 1), nn.ReLU(), layer(16, 16, kernel, padding=kernel // 2, groups=groups), layer(16, 8, 1)
    )


RANKS = {
    "1-D": (nn.Conv1d, (1, 3, 24), 7, 16, [(5, 5), (3, 3)]),
    "2-D, all channels together": (nn.Conv2d, (1, 3, 12, 12), 5, 1, [(9, 9)]),
    "2-D, groups": (nn.Conv2d, (1, 3, 12, 12), 7, 4, [(25, 25), (9, 9)]),
    "3-D": (nn.Conv3d, (1, 3, 6, 6, 6), 5, 16, [(27, 27)]),
}


@pytest.mark.parametrize("case", RANKS)
def test_kernels_of_every_rank_are_transformed_by_position(case: str, tmp_path: Path) -> None:
    layer, shape, kernel, groups, matrices = RANKS[case]
    torch.manual_seed(0)
    model = Sequence(layer(3, 8, 1), _body(layer, kernel, groups), _body(layer, kernel, groups)).eval()
    net = tailor_ir.compile(model, torch.zeros(shape), kernel_transform=True)
    assert [tuple(matrix.shape) for matrix in net.kernel_matrices] == matrices * 2
    scramble(net)
    check_largest(net, model, torch.zeros(shape))
    check_subnet(net, net.min_config, tmp_path, torch.zeros(shape))
    net.elastic.activate({"stage.1.block.1.kernel_size": 3})
    stored = net.elastic.tensor("blocks.0.body.2.weight")
    found = net.elastic._fixed_values()["blocks.0.body.2.weight/transformed"]
    size, expected = kernel, stored
    for matrix in net.kernel_matrices[: len(matrices)]:
        inner = (slice(1, -1),) * len(shape[2:])
        flat = expected[(slice(None), slice(None), *inner)].reshape(*stored.shape[:2], -1)
        size -= 2
        expected = torch.einsum("oij,kj->oik", flat, matrix).reshape(*stored.shape[:2], *(size,) * len(shape[2:]))
    assert torch.allclose(found, expected, atol=1e-6)


def test_steps_follow_the_choices_of_the_space() -> None:
    wish = {"stage.1.block.1.kernel_size": [3, 7], "stage.1.block.2.kernel_size": [1, 5, 7]}
    names = [name for name in transformed(two_blocks(), wish).structure.graph.parameters if "to" in name]
    assert names == ["blocks.0.body.3.weight.7to3", "blocks.1.body.3.weight.7to5", "blocks.1.body.3.weight.5to1"]


def test_kernels_that_stay_as_they_are_have_no_transform() -> None:
    net = transformed(two_blocks(), {"stage.1.block.2.kernel_size": [5, 7]})
    assert [tuple(matrix.shape) for matrix in net.kernel_matrices] == [(25, 25)]
    assert [node.inputs[0] for node in net.structure.graph if node.op == "KernelTransform"] == [
        "blocks.1.body.3.weight"
    ]


def test_rectangular_kernels_are_left_as_they_are() -> None:
    wide = Residual(nn.Sequential(nn.Conv2d(16, 32, 1), nn.Conv2d(32, 16, (3, 7), padding=(1, 3))))
    net = transformed(perturb(Convolutional(inverted(5), wide)))
    assert [node.inputs[0] for node in net.structure.graph if node.op == "KernelTransform"] == [
        "blocks.0.body.3.weight"
    ]


def test_a_kernel_that_two_layers_read_is_transformed_once(tmp_path: Path) -> None:
    class Twice(UsedTwice):
        def __init__(self) -> None:
            super().__init__()
            self.block = inverted(5)

    torch.manual_seed(0)
    model = perturb(Twice())
    net = transformed(model)
    assert len(net.kernel_matrices) == 1
    assert [node.op for node in net.structure.graph].count("KernelTransform") == 1
    scramble(net)
    check_largest(net, model, SAMPLE)
    check_subnet(net, net.min_config, tmp_path, SAMPLE)


def test_a_network_without_elastic_kernels_is_refused_in_one_line() -> None:
    small = Convolutional(inverted(3), inverted(3)).eval()
    small.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3)  # in no block, so that no variable can have it
    with pytest.raises(tailor_ir.SpaceError, match="kernel_transform: no block of this network has a kernel") as none:
        tailor_ir.compile(small, SAMPLE, kernel_transform=True)
    with pytest.raises(tailor_ir.SpaceError, match="kernel_transform: the space leaves every kernel") as frozen:
        tailor_ir.compile(two_blocks(), SAMPLE, {"*.depth": "auto"}, kernel_transform=True)
    assert "\n" not in f"{none.value}{frozen.value}"


# -- what stays the same -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_space_counts_operators_and_costs_are_those_without_transforms() -> None:
    model, sample = from_timm("mobilenetv3_large_100")
    plain = tailor_ir.compile(model, sample)
    net = tailor_ir.compile(model, sample, kernel_transform=True)
    assert net.space == plain.space
    assert (net.space.modifications, net.space.codes, net.space.distinct) == (
        plain.space.modifications,
        plain.space.codes,
        plain.space.distinct,
    )
    assert dict(net.unique_operators()) == dict(plain.unique_operators())
    rng = np.random.default_rng(0)
    for config in [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(20))]:
        assert net.operators(config) == plain.operators(config)
        assert net.macs(config) == plain.macs(config)
        assert net.parameters(config) == plain.parameters(config)
        assert net.input_shape(config) == plain.input_shape(config)
    saved = [(info.name, info.parameters_saved, info.macs_saved) for info in net.space.info]
    assert saved == [(info.name, info.parameters_saved, info.macs_saved) for info in plain.space.info]


def test_a_subnet_is_described_as_built() -> None:
    net = transformed(two_blocks())
    describer = Describer(net.structure)
    for row in net.space.random_codes(6, np.random.default_rng(0)):
        built = net.build(net.space.decode(row))
        assert describer.summary(row).parameters == sum(p.numel() for p in built.parameters())


@torch.no_grad()
def test_sorting_channels_keeps_every_kernels_function() -> None:
    net = transformed(two_blocks(), WISH)
    scramble(net)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    whole = [{"stage.1.block.1.kernel_size": a, "stage.1.block.2.kernel_size": b} for a in (3, 5, 7) for b in (3, 5, 7)]

    def answers() -> list[torch.Tensor]:
        found = []
        for config in whole:
            net.elastic.activate(config)
            found.append(net.elastic(x))
        return found

    before, matrices = answers(), [matrix.clone() for matrix in net.kernel_matrices]
    kernel = net.elastic.tensor("blocks.0.body.3.weight").clone()
    net.sort_channels()
    assert not torch.equal(kernel, net.elastic.tensor("blocks.0.body.3.weight"))
    assert all(map(torch.equal, matrices, net.kernel_matrices))
    for expected, found in zip(before, answers(), strict=True):
        assert difference(expected, found) <= SORTED_TOLERANCE


@torch.no_grad()
def test_a_stored_supernet_has_its_matrices_and_its_function(tmp_path: Path) -> None:
    for wish in (None, WISH):
        net = transformed(two_blocks(), wish)
        scramble(net)
        net.save(tmp_path / "net")
        loaded = tailor_ir.load(tmp_path / "net")
        loaded.elastic.eval()
        assert loaded.space == net.space
        assert loaded.elastic.state_dict().keys() == net.elastic.state_dict().keys()
        assert len(loaded.kernel_matrices) == 4
        assert all(map(torch.equal, loaded.kernel_matrices, net.kernel_matrices))
        x = torch.randn(net.input_shape(net.min_config, 2))
        for each in (net, loaded):
            each.elastic.activate(net.min_config)
        assert torch.equal(loaded.elastic(x), net.elastic(x))


def test_without_the_option_there_is_no_transform() -> None:
    net = tailor_ir.compile(two_blocks(), SAMPLE)
    assert net.kernel_matrices == ()
    assert sorted(net.structure.graph.parameters) == sorted(name for name, _ in two_blocks().named_parameters())


def test_the_page_shows_the_same_sizes_and_frozen_channels() -> None:
    volume = nn.Sequential(nn.Conv2d(16, 32, 1), nn.Conv2d(32, 32, 5, padding=2, groups=4), nn.Conv2d(32, 16, 1))
    model = perturb(Convolutional(inverted(7), Residual(volume)))
    pages = [
        gather(tailor_ir.compile(model, SAMPLE, {"*.kernel_size": "auto"}, kernel_transform=k), "net")
        for k in (False, True)
    ]
    for part in ("parameters", "macs", "frozen", "dropped"):
        assert getattr(pages[0], part) == getattr(pages[1], part), part
