"""A module whose Python code decides by values is told apart from what was traced of it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tailor_ir
from tailor_ir.reading.comparison import difference_of_answers
from tailor_ir.reading.value_reads import ValueReads


class Deciding(nn.Module):
    """A convolution, whose result or input decides what comes next."""

    def __init__(self, decide: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.decide = decide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decide(self.conv(x)).mean((2, 3))


def remarks(net: tailor_ir.SuperNet) -> list[str]:
    """Those of how the network was read: spaces of such networks are small, and that is said, too."""
    return [line for line in net.remarks if not line.startswith("the space has")]


def by_sum(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x * 2
    return x - 1


def by_number(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if float(x.mean()) > 0 else x - 1


def by_equality(x: torch.Tensor) -> torch.Tensor:
    positive = x.mean() > 0
    return x * 2 if torch.equal(positive, torch.ones_like(positive)) else x - 1


def by_list(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if sum(x.flatten(1).mean(1).tolist()) > 0 else x - 1


def by_array(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.numpy().mean() > 0 else x - 1


def by_a_changed_copy(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(1)
    total[0] = x.sum()
    return x * 2 if total > 0 else x - 1


@pytest.mark.parametrize("decide", [by_sum, by_number, by_equality, by_list, by_array, by_a_changed_copy])
@pytest.mark.parametrize("example", [torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8), -torch.ones(1, 3, 8, 8)])
def test_a_frozen_branch_is_refused_with_its_line(
    decide: Callable[[torch.Tensor], torch.Tensor], example: torch.Tensor
) -> None:
    torch.manual_seed(0)
    model = Deciding(decide)
    line = decide.__code__.co_firstlineno + (2 if decide in (by_equality,) else 3 if decide is by_a_changed_copy else 1)
    place = rf"values of the input decide at tests/unit/ir/test_comparison\.py:{line}; allowed"
    with pytest.raises(
        tailor_ir.ImportFailed, match=rf"network 'Deciding': the compiled .* otherwise .*{place}"
    ) as told:
        tailor_ir.compile(model, example)
    assert "\n" not in str(told.value)
    assert model.training, "the module is left as it was"


def test_a_decision_that_no_input_changed_is_remarked() -> None:
    def rarely(x: torch.Tensor) -> torch.Tensor:
        if x.max() > 1e6:
            return x * 0
        return x

    net = tailor_ir.compile(Deciding(rarely).eval(), torch.zeros(1, 3, 8, 8))
    (remark,) = remarks(net)
    line = rarely.__code__.co_firstlineno + 1
    assert remark.startswith(
        f"values of the input decide at tests/unit/ir/test_comparison.py:{line}: the compiled network"
    )


def test_decisions_by_shapes_and_stored_values_are_none() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[2] > 3
            if self.get_buffer("scale") > 1 and len(x) > 0:
                x = x * self.get_buffer("scale").item()
            return self.conv(x).mean((2, 3))

    assert remarks(tailor_ir.compile(Plain().eval(), torch.zeros(1, 3, 8, 8))) == []


def test_inputs_that_the_module_refuses_are_left_out() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        if x.min() < -1.5:
            raise ValueError("images are from 0 to 1")
        return x

    net = tailor_ir.compile(Deciding(positive).eval(), torch.zeros(1, 3, 8, 8))
    assert len(remarks(net)) == 1


def test_rounding_that_a_network_makes_large_is_no_difference() -> None:
    """A constant image through InstanceNorms without a floor is rounding noise divided by rounding noise."""
    torch.manual_seed(0)
    norms = (nn.InstanceNorm2d(4, eps=1e-12) for _ in range(2))
    model = nn.Sequential(nn.Conv2d(3, 4, 1), next(norms), nn.Conv2d(4, 4, 1), next(norms), nn.Sigmoid())

    class Read(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.abs().max() < 1e6
            return self.layers(x)

    net = tailor_ir.compile(Read().eval(), torch.ones(1, 3, 8, 8))
    assert len(remarks(net)) == 1


def test_reads_are_noted_by_dependence_not_by_use() -> None:
    source = torch.randn(2, 3)
    with ValueReads({"source": source}) as reads:
        bool(torch.ones(1) > 0)
        bool(source.T.sum() > 0)
    assert list(reads.places.values()) == [{"source"}]


def test_stored_values_that_python_reads_are_the_network_s_own() -> None:
    """The trace is of a copy with other values, lest equal tensors be merged."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.twin = nn.Conv2d(3, 4, 3)
            self.twin.load_state_dict(self.conv.state_dict())
            self.temperature = nn.Parameter(torch.tensor(7.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x) + self.twin(x)
            return x.mean((2, 3)) * self.temperature.item() if self.temperature > 1 else x.mean((2, 3))

    torch.manual_seed(0)
    model = Scaled().eval()
    net = tailor_ir.compile(model, torch.zeros(1, 3, 8, 8))
    assert remarks(net) == []
    assert {"conv.weight", "twin.weight"} <= set(net.structure.graph.parameters)
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(net.elastic.eval()(x), model(x), atol=1e-5)


def test_sizes_of_stored_tensors_are_no_values() -> None:
    weight = torch.randn(4, 3)
    reads = ValueReads({"weight": weight})

    def sized(x: torch.Tensor) -> torch.Tensor:
        with reads:
            return x[:, : int(weight.shape[0])] if weight.size(1) > 2 and weight.numel() > 2 else x

    torch.jit.trace(sized, torch.randn(2, 8))
    assert reads.places == {}


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([math.nan, 4.0], [0.0, 4.0], math.inf),
        ([math.nan, 4.0], [math.nan, 3.0], 0.25),
        ([0.0, 4.0], [math.nan, 4.0], math.inf),
        ([math.inf, 4.0], [0.0, 4.0], math.inf),
    ],
)
def test_numbers_that_one_answer_lacks_are_a_difference(
    expected: list[float], found: list[float], difference: float
) -> None:
    assert difference_of_answers([torch.tensor(expected)], [torch.tensor(found)]) == difference
