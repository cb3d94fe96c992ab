"""Forms in which modules come: wrappers are taken off, lazy layers made, others told in one line, and nothing is printed."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir

X = torch.zeros(1, 3, 8, 8)


def small() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4)).eval()


@pytest.mark.parametrize(
    "wrapped",
    [
        nn.DataParallel(small()),
        torch.compile(small()),
        nn.DataParallel(torch.compile(small())),  # type: ignore[type-var]
        nn.Sequential(torch.compile(small())),  # type: ignore[call-overload]
    ],
    ids=["DataParallel", "torch.compile", "both", "a compiled part"],
)
def test_wrapped_modules_are_read(wrapped: nn.Module) -> None:
    net = tailor_ir.compile(wrapped, X)
    assert net.space.distinct == tailor_ir.compile(small(), X).space.distinct


def test_lazy_layers_are_made_with_the_example() -> None:
    model = nn.Sequential(nn.LazyConv2d(16, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4))
    net = tailor_ir.compile(model, X)
    assert model.training
    assert isinstance(model[0], nn.Conv2d)
    net.elastic.eval()
    torch.testing.assert_close(net.elastic(X + 1), model.eval()(X + 1))


def test_a_lazy_layer_that_cannot_be_made_is_told_in_one_line() -> None:
    model = nn.Sequential(nn.LazyConv2d(16, 3), nn.Linear(3, 4))
    with pytest.raises(tailor_ir.ImportFailed, match="lazy layers cannot be made with the example"):
        tailor_ir.compile(model, X)
    assert model.training
    assert all(layer.training for layer in model)


def quantised() -> nn.Module:
    return nn.Sequential(torch.ao.quantization.quantize_dynamic(small(), {nn.Linear}))


def on_meta() -> nn.Module:
    return small().to("meta")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (quantised, "layer '0.4' .Linear. is quantised; allowed: floating-point networks"),
        (lambda: torch.export.export(small(), (X,)), "an ExportedProgram.*allowed: the module that it was made from"),
        (
            lambda: torch.jit.trace(small(), X),
            "TorchScript.*allowed: the module that it was made from; or write torch.onnx",
        ),
        (on_meta, "'0.weight' is on the device 'meta'"),
        (lambda: small().state_dict(), "got OrderedDict; allowed: a module of torch"),
    ],
    ids=["quantised", "exported program", "TorchScript", "meta", "state"],
)
def test_other_forms_are_told_in_one_line(make: object, told: str) -> None:
    with pytest.raises(tailor_ir.ImportFailed, match=told) as error:
        tailor_ir.compile(make(), X)  # type: ignore[operator]
    assert "\n" not in str(error.value)


class Drawing(nn.Module):
    """Dropout that stays on, at the end or in the middle."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.conv, self.linear, self.last = nn.Conv2d(3, 16, 3), nn.Linear(16, 4), last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x).mean((2, 3))
        return F.dropout(self.linear(x)) if self.last else self.linear(F.dropout(x))


@pytest.mark.parametrize("last", [True, False])
def test_dropout_that_stays_on_is_refused(last: bool) -> None:
    with pytest.raises(tailor_ir.ImportFailed, match=r"operator 'Dropout' at '.*' draws random numbers in eval mode"):
        tailor_ir.compile(Drawing(last).eval(), X)


class Bessel(nn.Module):
    """A function that ONNX does not have."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


def test_nothing_is_printed_beside_the_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), Bessel(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    with pytest.raises(tailor_ir.ImportFailed, match="bessel_j0"):
        tailor_ir.compile(model, X)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""
