"""Activations, arithmetic, comparisons and reductions, each inside a small network."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.ir.invariants import check_network, operators_of
from tests.support.ir.networks import perturb

HIDDEN = 32


class Function(nn.Module):
    """A function of x as a module."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Around(nn.Module):
    """Stem, two residual blocks with `make()` on their hidden channels, classifier."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(16, HIDDEN, 1), nn.BatchNorm2d(HIDDEN), make(), nn.Conv2d(HIDDEN, 16, 3, padding=1))
            for _ in range(2)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


def around(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return perturb(Around(make))


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "celu": lambda: nn.CELU(0.7),
    "elu": lambda: nn.ELU(0.7),
    "gelu": nn.GELU,
    "gelu of tanh": lambda: nn.GELU("tanh"),
    "hard sigmoid": nn.Hardsigmoid,
    "hard swish": nn.Hardswish,
    "hard swish written out": lambda: Function(lambda x: x * F.relu6(x + 3) / 6),
    "hard tanh": lambda: nn.Hardtanh(-0.5, 0.7),
    "leaky relu": lambda: nn.LeakyReLU(0.2),
    "log sigmoid": nn.LogSigmoid,
    "mish": nn.Mish,
    "prelu": lambda: nn.PReLU(HIDDEN, 0.3),
    "prelu of one": lambda: nn.PReLU(1, 0.3),
    "relu6": nn.ReLU6,
    "selu": nn.SELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "softsign": nn.Softsign,
    "tanh": nn.Tanh,
    "hard shrink": lambda: nn.Hardshrink(0.3),
    "soft shrink": lambda: nn.Softshrink(0.3),
    "gelu written out": lambda: Function(lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))),
}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "between": lambda x: torch.where((x >= -0.3) & (x <= 0.4) | (x > 1.0), x, -x),
    "not equal": lambda x: x * (~(x == 0)).float(),
    "maximum": lambda x: torch.maximum(x, x.mean((2, 3), keepdim=True)),
    "minimum": lambda x: torch.minimum(x, x.mean((2, 3), keepdim=True)),
    "limits that are computed": lambda x: torch.clamp(x, x.mean((1, 2, 3), keepdim=True) - 0.5, None),
    "sign and absolute": lambda x: x.sign() * x.abs().sqrt(),
    "remainder": lambda x: torch.remainder(x, 0.7),
    "fractional power": lambda x: (x.abs() + 0.1) ** 1.5,
    "sine and cosine": lambda x: x.sin() + x.cos() * x.exp().clamp(max=2.0),
    "logarithm": lambda x: (1 + x.square()).log(),
    "rounding": lambda x: x * (x * 3).floor() + x.ceil() - x.round() * 0.5,
    "error function": lambda x: torch.erf(x) * 0.5,
    "reciprocal": lambda x: 1.0 / (1.5 + x.square()),
    "cumulative sum": lambda x: x.cumsum(2) * 0.1,
    "triangle": lambda x: x.tril(1),
    "softmax of channels": lambda x: x.softmax(1) * 10,
    "log-softmax of channels": lambda x: x.log_softmax(1),
    "softmax of positions": lambda x: x.flatten(2).softmax(-1).reshape(x.shape) * 30,
    "squares": lambda x: torch.relu(x) ** 2,
}
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda x: x.mean((2, 3), keepdim=True),
    "sum": lambda x: x.sum((2, 3), keepdim=True) * 0.01,
    "maximum": lambda x: x.amax((2, 3), keepdim=True),
    "minimum": lambda x: x.amin((2, 3), keepdim=True),
    "mean of channels": lambda x: x.mean(1, keepdim=True),
    "maximum of channels": lambda x: x.amax(1, keepdim=True),
    "norm": lambda x: x.norm(dim=1, keepdim=True),
    "absolute norm": lambda x: x.norm(p=1, dim=1, keepdim=True) * 0.1,
    "log-sum-exp": lambda x: x.logsumexp(1, keepdim=True),
    "product": lambda x: (1 + 0.1 * x).prod(1, keepdim=True),
    "variance": lambda x: x.var((2, 3), keepdim=True, unbiased=False),
    "all": lambda x: x.sum((1, 2, 3), keepdim=True) * 0.001,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str, tmp_path: Path) -> None:
    net = check_network(around(ACTIVATIONS[name]), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, tmp_path: Path) -> None:
    net = check_network(around(lambda: Function(FUNCTIONS[name])), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_as_gates(name: str, tmp_path: Path) -> None:
    def gate(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(REDUCTIONS[name](x))

    net = check_network(around(lambda: Function(gate)), torch.randn(1, 3, 16, 16), tmp_path)
    assert {v.kind for v in net.space.variables} >= {"depth", "expand_ratio"}


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("gelu", "Gelu"),
        ("gelu of tanh", "Gelu"),
        ("gelu written out", "Gelu"),
        ("hard swish written out", "HardSwish"),
        ("mish", "Mish"),
        ("silu", "Silu"),
    ],
)
def test_what_exporters_write_out_is_one_operator(name: str, operator: str, tmp_path: Path) -> None:
    net = check_network(around(ACTIVATIONS[name]), torch.randn(1, 3, 16, 16), tmp_path, subnets=0)
    assert operators_of(net) == {"Add", "BatchNormalization", "Conv", "Linear", "ReduceMean", operator}
