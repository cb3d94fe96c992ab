"""Unique operators against brute force: random small networks of every kind of block, random spaces over them."""

from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import tailor_ir
from benchmarks.enumeration import random_configs, supernet_of
from tailor_ir import Config, OperatorFeature
from tests.support import examples, long
from tests.support.ir.networks import ResidualBlock, from_timm, perturb

CHANNELS, SIDE = 16, 24
SUBNETS = 400  # largest space that is enumerated by brute force


def norm_relu(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU()]


class Added(nn.Module):
    """x plus what `body` makes of it."""

    def __init__(self, *body: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def grouped(channels: int) -> nn.Module:
    return Added(
        nn.Conv2d(channels, 32, 1),
        *norm_relu(32),
        nn.Conv2d(32, 32, 3, padding=1, groups=4),
        *norm_relu(32),
        nn.Conv2d(32, channels, 1),
    )


def inverted(channels: int) -> nn.Module:
    return Added(
        nn.Conv2d(channels, 32, 1),
        *norm_relu(32),
        nn.Conv2d(32, 32, 5, padding=2, groups=32),
        nn.BatchNorm2d(32),
        nn.Hardswish(),
        nn.Conv2d(32, channels, 1),
    )


class Squeezed(nn.Module):
    """A residual block whose hidden channels are weighted by what all positions together say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand, self.project = nn.Conv2d(channels, 24, 3, padding=1), nn.Conv2d(24, channels, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 8, 1), nn.ReLU(), nn.Conv2d(8, 24, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.expand(x))
        return x + self.project(y * self.gate(y).sigmoid())


class Attention(nn.Module):
    """Attention over positions of an image, and a feed-forward layer, both residual."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, channels // heads
        self.before, self.after = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.project = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.ffn = nn.Sequential(nn.Linear(channels, 32), nn.GELU(), nn.Linear(32, channels))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = image.shape
        x = image.flatten(2).transpose(1, 2)
        shape = (batch, height * width, 3, self.heads, self.size)
        q, k, v = self.qkv(self.before(x)).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = (q * self.size**-0.5 @ k.transpose(-2, -1)).softmax(-1) @ v
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, height * width, channels))
        x = x + self.ffn(self.after(x))
        return x.transpose(1, 2).reshape(batch, channels, height, width)


class Dense(nn.Module):
    """Each layer reads all that came before; a projection ends it."""

    def __init__(self, channels: int, growth: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(*norm_relu(channels + i * growth), nn.Conv2d(channels + i * growth, growth, 3, padding=1))
            for i in range(layers)
        )
        self.project = nn.Conv2d(channels + layers * growth, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.project(x)


class Branches(nn.Module):
    """Residual blocks side by side at two resolutions, then joined."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(*(ResidualBlock(channels, 24) for _ in range(2)))
        self.down = nn.Sequential(nn.Conv2d(channels, channels, 3, stride=2, padding=1), *norm_relu(channels))
        self.coarse = nn.Sequential(*(ResidualBlock(channels, 24) for _ in range(2)))
        self.project = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.project(self.fine(x)) + self.coarse(self.down(x)))


PARTS: dict[str, Callable[[int], nn.Module]] = {
    "residual": lambda channels: ResidualBlock(channels, 24),
    "grouped": grouped,
    "inverted": inverted,
    "squeezed": Squeezed,
    "attention": Attention,
    "dense": Dense,
    "branches": Branches,
    "smaller": lambda channels: nn.Sequential(
        nn.Conv2d(channels, channels, 3, stride=2, padding=1), *norm_relu(channels)
    ),
}


def network(parts: list[str]) -> nn.Module:
    torch.manual_seed(0)
    return perturb(
        nn.Sequential(
            nn.Conv2d(3, CHANNELS, 3, stride=2, padding=1, bias=False),
            *norm_relu(CHANNELS),
            *(PARTS[part](CHANNELS) for part in parts),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(CHANNELS, 5),
        )
    )


def small_space(net: tailor_ir.SuperNet, rng: np.random.Generator) -> dict[str, list[float]]:
    """Random variables of a SuperNet with random choices of theirs, at most SUBNETS combinations."""
    wish: dict[str, list[float]] = {}
    codes = 1
    for index in rng.permutation(len(net.space.variables)):
        variable = net.space.variables[index]
        count = int(rng.integers(1, len(variable.choices)))
        if codes * (count + 1) <= SUBNETS:
            others = rng.permutation(len(variable.choices) - 1)[:count]
            wish[variable.name] = [variable.choices[i] for i in sorted(others)] + [variable.default]
            codes *= count + 1
    return wish


def all_configs(net: tailor_ir.SuperNet) -> list[Config]:
    names = [variable.name for variable in net.space.variables]
    return [dict(zip(names, c, strict=True)) for c in product(*(v.choices for v in net.space.variables))]


def check(net: tailor_ir.SuperNet) -> None:
    """Unique operators, their witnesses and the terms, against the operators of every single SubNet."""
    unique, terms = net.unique_operators(), net.operator_terms()
    found: set[OperatorFeature] = set()
    for config in all_configs(net):
        operators = net.operators(config)
        found.update(operators)
        row = net.space.row(config)
        picked = [term.features[tuple(row[list(term.variables)])] for term in terms]
        assert tuple(feature for feature in picked if feature is not None) == operators
    assert found == unique.keys()
    for feature, config in unique.items():
        assert feature in net.operators(config)
        assert net.space.canonical(config) == config


@pytest.mark.long
@settings(max_examples=examples(40), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=4), st.integers(0, 2**31))
def test_unique_operators_of_random_networks_are_those_of_all_subnets(parts: list[str], seed: int) -> None:
    model, sample = network(parts), torch.zeros(1, 3, SIDE, SIDE)
    proposed = tailor_ir.compile(model, sample)
    wish = small_space(proposed, np.random.default_rng(seed))
    net = tailor_ir.compile(model, sample, wish)
    assert {variable.name for variable in net.space.variables} == wish.keys()
    check(net)


@pytest.mark.parametrize(
    ("parts", "wish"),
    [
        (["inverted"] * 3, {"resolution": [16, 24], "*.depth": "auto", "*.kernel_size": [3, 5]}),
        (["attention"] * 2, {"resolution": [16, 24], "*.depth": "auto", "*.heads": "auto", "*.expand_ratio": [1, 2]}),
        (["grouped", "smaller", "squeezed"], {"*.width_mult": [0.5, 1], "*.expand_ratio": "auto"}),
        (["dense", "dense"], None),
        (["branches"], {"*.depth": "auto", "*.expand_ratio": "auto"}),
        (["residual"] * 3, {"stage.1.depth": [-2, 0], "stage.1.width_mult": [0.5, 1], "*.block.3.*": "auto"}),
    ],
)
def test_every_kind_of_variable_is_enumerated_exactly(parts: list[str], wish: dict[str, Any] | None) -> None:
    net = tailor_ir.compile(network(parts), torch.zeros(1, 3, SIDE, SIDE), wish)
    assert 1 < net.space.codes <= 4000
    kinds = {name.rsplit(".", 1)[-1] for name in wish or ()} - {"*"}
    assert kinds <= {variable.kind for variable in net.space.variables}
    check(net)


def exported_layers(net: tailor_ir.SuperNet, config: Config, path: Path) -> Counter[tuple[object, ...]]:
    """Convolutions of an exported file: input, weight and result shape, group, padding and strides."""
    net.export(config, path)
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        shapes[value.name] = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
    layers: Counter[tuple[object, ...]] = Counter()
    for node in model.graph.node:
        if node.op_type == "Conv":
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            settings = tuple(np.asarray(attributes[name]).tolist().__str__() for name in ("group", "pads", "strides"))
            layers[(*(shapes[n] for n in (*node.input[:2], node.output[0])), *settings)] += 1
    return layers


@pytest.mark.parametrize("parts", [["inverted", "smaller", "grouped"], ["squeezed", "dense", "residual"]])
def test_operators_have_the_shapes_and_attributes_of_the_exported_file(parts: list[str], tmp_path: Path) -> None:
    net = tailor_ir.compile(network(parts), torch.zeros(1, 3, SIDE, SIDE))
    rng = np.random.default_rng(0)
    for config in [net.min_config, net.max_config, *(net.space.sample(rng) for _ in range(8))]:
        read: Counter[tuple[object, ...]] = Counter()
        for feature in net.operators(config):
            if feature.operator == "Conv":
                attributes = dict(feature.attributes)
                settings = []
                for name in ("group", "pads", "strides"):
                    value = attributes[name]
                    settings.append(str(list(value) if isinstance(value, tuple) else value))
                read[feature.input_shapes[0], feature.parameter_shapes[0], feature.step_shapes[0], *settings] += 1
        assert read == exported_layers(net, config, tmp_path / "subnet.onnx")


@pytest.mark.long
@pytest.mark.parametrize("preset", ["mobilenetv3", long("levit")])
def test_random_subnets_of_a_preset_bring_no_other_operator(preset: str) -> None:
    net = supernet_of(preset)
    unique = net.unique_operators()
    for config in random_configs(net, 300, np.random.default_rng(0)):
        assert set(net.operators(config)) <= unique.keys()


def test_blocks_that_are_alike_share_operators() -> None:
    net = tailor_ir.compile(network(["residual"] * 3), torch.zeros(1, 3, SIDE, SIDE))
    operators = net.operators(net.max_config)
    convolutions = [feature for feature in operators if feature.operator == "Conv"]
    assert len(convolutions) == 1 + 3 * 2
    assert len(set(convolutions)) == 3


class Conditional(nn.Module):
    """Tokens that are looked up, masked by what they are, and compared."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 16)
        self.layer, self.head = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        present = tokens.ne(0)
        x = self.table(tokens) * present.unsqueeze(-1)
        y = F.relu(self.layer(x))
        return self.head(torch.where(y > x, y, x + 1).mean(1))


def run(feature: OperatorFeature) -> None:
    """The operator's model runs in onnxruntime with results of the stated shapes, and survives a trip through JSON."""
    model = tailor_ir.operator_model(feature)
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    types = dict(feature.element_types)
    feeds = {f"in{i}": np.ones(shape, types.get(f"in{i}", "float32")) for i, shape in enumerate(feature.input_shapes)}
    assert tuple(output.shape for output in session.run(None, feeds)) == feature.output_shapes
    assert OperatorFeature.from_json(feature.to_json()) == feature
    assert feature.macs >= 0


def test_operators_of_integers_and_truths_run_alone() -> None:
    net = tailor_ir.compile(Conditional().eval(), torch.randint(0, 50, (1, 12)))
    unique = net.unique_operators()
    types = {kind for feature in unique for _, kind in feature.element_types}
    assert types == {"bool", "int64"}
    for feature in unique:
        run(feature)


@pytest.mark.parametrize("parts", [["attention", "dense"], ["squeezed", "smaller", "inverted", "grouped"]])
def test_every_unique_operator_runs_alone(parts: list[str]) -> None:
    for feature in tailor_ir.compile(network(parts), torch.zeros(1, 3, SIDE, SIDE)).unique_operators():
        run(feature)


@pytest.mark.parametrize("name", ["test_convnext", long("swin_tiny_patch4_window7_224"), long("sequencer2d_s")])
def test_every_kind_of_operator_of_a_large_network_runs_alone(name: str) -> None:
    kinds = {}
    model, sample = large(name)
    for feature in tailor_ir.compile(model, sample).unique_operators():
        kinds[tuple(step.op for step in feature.steps), len(feature.input_shapes)] = feature  # the last is the smallest
    for feature in kinds.values():
        run(feature)


def large(name: str) -> tuple[nn.Module, torch.Tensor]:
    import timm

    model = perturb(timm.create_model(name))
    known: Any = model.pretrained_cfg
    return model, torch.zeros(1, *known["input_size"])


def test_macs_of_recurrent_and_general_products() -> None:
    lstm = nn.LSTM(16, 8, batch_first=True, bidirectional=True)

    class Sequence(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = lstm, nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tokens = x.flatten(2).transpose(1, 2)
            return self.head(torch.einsum("bic,bjc->bij", self.lstm(tokens)[0], tokens).mean(1)[:, :16])

    net = tailor_ir.compile(Sequence().eval(), torch.zeros(1, 16, 4, 4))
    macs = {feature.operator: feature.macs for feature in net.operators(net.max_config)}
    assert macs["LSTM"] == 2 * 16 * 4 * 8 * (16 + 8)
    assert macs["Einsum"] == 16 * 16 * 16


@pytest.mark.long
def test_a_large_attention_is_one_operator_with_its_relative_positions() -> None:
    model, sample = large("swin_tiny_patch4_window7_224")
    net = tailor_ir.compile(model, sample)
    operators = [feature.operator for feature in net.operators(net.max_config)]
    assert operators.count("Attention") == 12
    assert not {"Softmax", "MatMul"} & set(operators)


def test_enumerating_again_gives_the_same(tmp_path: Path) -> None:
    model, sample = from_timm("mobilenetv3_small_050")
    net = tailor_ir.compile(model, sample)
    net.save(tmp_path)
    again = tailor_ir.load(tmp_path).unique_operators()
    assert dict(again) == dict(net.unique_operators())
