"""Fourier transforms and complex numbers of modules, and DFT and STFT of files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tailor_ir
from tailor_ir.ops.spectra import FourierTransform
from tailor_ir.reading.complex_pairs import ComplexPair
from tailor_ir.reading.torch_functions import WrittenOut
from tests.unit.ir.around import SIDE, WIDTH, check, is_elastic, network, operators_of

Body = Callable[[torch.Tensor], torch.Tensor]


class GlobalFilter(nn.Module):
    """A learned filter of all frequencies. Source: GFNet (NeurIPS 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, SIDE, SIDE // 2 + 1, 2) * 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(self.weight)
        return torch.fft.irfft2(spectrum, s=x.shape[-2:], norm="ortho")


class SpectralConv(nn.Module):
    """The lowest frequencies times complex matrices. Source: FNO (ICLR 2021)."""

    def __init__(self, modes: int = 3) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, modes, modes, dtype=torch.cfloat) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft2(x)
        low = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, : self.modes, : self.modes], self.weight)
        kept = torch.zeros(len(x), WIDTH, x.shape[2], x.shape[3] // 2 + 1, dtype=torch.cfloat)
        kept[:, :, : self.modes, : self.modes] = low
        return torch.fft.irfft2(kept, s=x.shape[-2:])


def mixed(x: torch.Tensor) -> torch.Tensor:
    """Source: FNet (NAACL 2022)."""
    return torch.fft.fft2(x).real


def mixed_channels(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.fft(torch.fft.fft(x, dim=1), dim=2).real


def fast_convolution(x: torch.Tensor) -> torch.Tensor:
    """Twice as many points as there are, as FFTs convolve long sequences."""
    size = x.shape[-1]
    product = torch.fft.rfft(x, n=2 * size) * torch.fft.rfft(torch.arange(size) / size, n=2 * size)
    return torch.fft.irfft(product, n=2 * size)[..., :size]


def turned(x: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.fftshift(torch.fft.fft(x, norm="forward"), dim=-1)
    phase = torch.polar(torch.ones_like(x), x) * 1j
    return torch.abs(spectrum * phase.conj() + 0.5) + torch.angle(spectrum + 2.0)


def spectrogram(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(16)
    found = torch.stft(x.flatten(2).mean(1), 16, 8, window=window, return_complex=True)
    return x * found.abs().pow(2).mean((1, 2), keepdim=True)[..., None]


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    signal, window = x.flatten(2).mean(1), torch.hann_window(16)
    spectrum = torch.stft(signal, 16, 4, window=window, return_complex=True)
    again = torch.istft(spectrum * 0.5, 16, 4, window=window, length=signal.shape[-1])
    return x + again.reshape(len(x), 1, *x.shape[2:])


@pytest.mark.parametrize(
    ("body", "elastic"),
    [
        (mixed, {"resolution", "width_mult"}),
        (mixed_channels, {"resolution"}),
        (GlobalFilter(), {"resolution", "width_mult"}),
        (SpectralConv(), set()),
        (fast_convolution, {"width_mult"}),
        (turned, {"width_mult"}),
        (spectrogram, {"width_mult"}),
        (there_and_back, {"width_mult"}),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_networks_with_transforms_compile(body: Body, elastic: set[str], tmp_path: Path) -> None:
    net = check(network(body), tmp_path)
    assert "DFT" in operators_of(net)
    assert all(is_elastic(net, kind) for kind in elastic), (net.space.variables, net.space.dropped)
    assert net.macs(net.max_config) > 0
    assert net.peak_activation_bytes(net.min_config) > 0


@settings(max_examples=30)
@given(st.integers(1, 12), st.sampled_from(["fft", "ifft", "rfft", "irfft"]), st.integers(0, 2))
def test_the_stored_matrices_are_torchs_transforms(points: int, kind: str, axis: int) -> None:
    shape = [2, 3, 4]
    inverse, real = kind.startswith("i"), "r" in kind
    shape[axis] = points // 2 + 1 if kind == "irfft" else points
    x = torch.randn(*shape, 1 if kind == "rfft" else 2, generator=torch.Generator().manual_seed(points))
    after = points // 2 + 1 if kind == "rfft" else points
    module = FourierTransform(axis, (shape[axis], x.shape[-1]), (after, 1 if kind == "irfft" else 2), inverse)
    given = x[..., 0] if kind == "rfft" else torch.view_as_complex(x)
    expected = getattr(torch.fft, kind)(given, n=points, dim=axis)
    expected = expected.unsqueeze(-1) if real and inverse else torch.view_as_real(expected)
    torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=1e-4)


def pairs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, 4, 4, dtype=torch.cfloat, generator=generator) for _ in range(2))  # type: ignore[return-value]


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: 2 - a - b,
    "product": lambda a, b: 1j * a * b * 0.5,
    "quotient": lambda a, b: (a / b) / 3 + 1 / b,
    "matrices": lambda a, b: a @ b + torch.matmul(a.mT, b),
    "einsum": lambda a, b: torch.einsum("bij,bkj->bik", a, b),
    "exponential": lambda a, b: torch.exp(a) - b.exp(),
    "size and angle": lambda a, b: torch.polar(a.abs(), b.angle()),
    "conjugates": lambda a, b: a.conj() * torch.conj(b),
    "joined": lambda a, b: torch.cat((a, b.transpose(-1, -2).real), -1),
    "stacked and summed": lambda a, b: torch.stack([a, b]).sum(0).flatten(1),
    "parts": lambda a, b: torch.complex(a.real, b.imag)[:, 1:].permute(1, 0, 2),
    "powers": lambda a, b: a**2 + torch.square(b),
    "chosen": lambda a, b: torch.where(a.real > 0, a, 1.0) + torch.zeros_like(b),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_of_pairs_is_that_of_complex_numbers(name: str) -> None:
    a, b = pairs()
    expected = ARITHMETIC[name](a, b)
    with WrittenOut():
        found = ARITHMETIC[name](ComplexPair(a.real, a.imag), ComplexPair(b.real, b.imag))
    torch.testing.assert_close(torch.complex(found.real, found.imag), expected, atol=1e-4, rtol=1e-4)


def test_a_function_that_pairs_do_not_have_is_refused_by_name() -> None:
    class Solving(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.acosh(torch.fft.fft(x)).real

    with pytest.raises(tailor_ir.ImportFailed, match="function 'acosh' of complex numbers is not supported"):
        tailor_ir.compile(Solving(), torch.zeros(1, 3, 8, 8))


def test_a_network_that_gives_complex_numbers_alone_is_refused_in_one_line() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft2(x)

    with pytest.raises(tailor_ir.ImportFailed, match=r"^network 'Spectrum': .*it gives no real tensors; allowed: real"):
        tailor_ir.compile(Spectrum(), torch.zeros(1, 3, 8, 8))


def test_the_gradient_of_a_transform_is_the_originals() -> None:
    model = network(GlobalFilter())
    net = tailor_ir.compile(model, torch.zeros(1, 3, SIDE, SIDE))
    x = torch.randn(2, 3, SIDE, SIDE)
    model(x).square().sum().backward()
    net.elastic.eval()(x).square().sum().backward()
    weight = model.get_parameter("body.weight")
    assert isinstance(weight, nn.Parameter)
    own = net.elastic.weights["body/weight"].grad
    assert weight.grad is not None
    assert own is not None
    np.testing.assert_allclose(own.numpy(), weight.grad.numpy(), atol=1e-4 * float(weight.grad.abs().max()))
