"""Values of one number for each sample, and parameters of none: operators, memory and models of operators know them."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir.memory.layouts import Rules
from tailor_ir.ops.norm import lp_norm
from tests.unit.ir.forms import check_forms, shaken

EXAMPLES = settings(max_examples=4, deadline=None, derandomize=True)


class Body(nn.Module):
    """A stem and a head, and between them something made of their parts."""

    def __init__(self, image: bool) -> None:
        super().__init__()
        self.image = image
        self.stem = nn.Conv2d(3, 32, 3, 2, 1) if image else nn.Linear(12, 32)
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.gate, self.o = nn.Linear(32, 2), nn.Linear(32, 6)

    def pooled(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return x.mean((2, 3)) if self.image else x


class Experts(Body):
    """Two experts, weighted by a number for each sample."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pooled(x)
        one, other = self.gate(x).softmax(1).unbind(1)
        return self.o(one[:, None] * self.a(x) + other[:, None] * self.b(x))


class Score(Body):
    """One number for each sample is the answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gate(self.pooled(x)).amax(1)


class Similarity(Body):
    """The cosine of two branches, beside another answer."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.pooled(x)
        a, b = self.a(x), self.b(x)
        return (a * b).sum(1) / (a.square().sum(1).sqrt() * b.square().sum(1).sqrt() + 1), self.o(a)


@EXAMPLES
@given(kind=st.sampled_from((Experts, Score, Similarity)), image=st.booleans())
def test_a_number_for_each_sample_has_memory_and_operators(kind: Callable[[bool], nn.Module], image: bool) -> None:
    sample = torch.randn(1, 3, 16, 16) if image else torch.randn(1, 12)
    net = check_forms(kind(image), sample)
    assert net is not None
    for rules in (Rules(), Rules(channel_block=1, same_shape=False), Rules(planned=True)):
        assert net.peak_activation_bytes(net.min_config, rules) > 0


class Scaled(nn.Module):
    """A block times (plus, over, to the power of) a parameter without dimensions."""

    def __init__(self, how: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], image: bool) -> None:
        super().__init__()
        self.how, self.image, self.gain = how, image, nn.Parameter(torch.tensor(0.7))
        self.stem = nn.Conv2d(3, 32, 3, 2, 1) if image else nn.Linear(12, 32)
        self.f = nn.Conv2d(32, 32, 3, padding=1) if image else nn.Linear(32, 32)
        self.o = nn.Linear(32, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = x + self.how(torch.sigmoid(self.f(x)), self.gain)
        return self.o(x.mean((2, 3)) if self.image else x)


HOW = (torch.mul, torch.add, torch.div, torch.sub, torch.maximum)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@EXAMPLES
@given(how=st.sampled_from(HOW), image=st.booleans())
def test_operators_with_a_parameter_without_dimensions_are_models(
    how: Callable[..., torch.Tensor], image: bool
) -> None:
    sample = torch.randn(1, 3, 16, 16) if image else torch.randn(1, 12)
    net = check_forms(Scaled(how, image), sample)
    assert net is not None
    scalars = [feature for feature in net.unique_operators() if () in feature.parameter_shapes]
    assert scalars
    for feature in scalars:
        assert tailor_ir.operator_model(feature)


def test_features_of_scalars_are_told_apart_by_their_shapes() -> None:
    net = tailor_ir.compile(shaken(Scaled(torch.mul, True)), torch.randn(1, 3, 16, 16))
    (feature, *_) = [one for one in net.unique_operators() if () in one.parameter_shapes]
    assert type(feature).from_json(feature.to_json()) == feature


def test_zeros_of_unit_length_stay_zeros() -> None:
    """As in onnxruntime: SubNets of few channels have pixels that are zero behind a Relu."""
    x = torch.tensor([[3.0, 0.0], [4.0, 0.0]], requires_grad=True)
    y = lp_norm(x, axis=0, power=2)
    assert torch.equal(y.detach(), torch.tensor([[0.6, 0.0], [0.8, 0.0]]))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
