"""Replacements for torch functions that its exporter cannot express, used while a network is traced.

Complex tensors become pairs of real ones. Fourier transforms become ONNX's operator `DFT` on real tensors: (…, N, …, 1 or 2)
-> (…, K, …, 1 or 2), where the last axis holds the real and the imaginary part.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod, sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tailor_ir.errors import ImportFailed
from tailor_ir.reading.complex_pairs import ComplexPair, apply_to_pairs, has_pair, name_of, polar

Dims = int | Sequence[int] | None


class WrittenTransform(torch.autograd.Function):
    """Transform one axis of x (…, N, …, 1 or 2) as ONNX's DFT. shape: shape of x. length: number of points in time."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, axis: int, inverse: bool, onesided: bool, shape: tuple[int, ...], length: int
    ) -> torch.Tensor:
        with torch._C.DisableTorchFunction():  # torch's functions, not the replacements
            whole = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
            if inverse and onesided:
                return torch.fft.irfft(whole, length, axis).unsqueeze(-1)
            function = torch.fft.ifft if inverse else torch.fft.rfft if onesided else torch.fft.fft
            return torch.view_as_real(function(whole, dim=axis).resolve_conj()).contiguous()

    @staticmethod
    def symbolic(g: Any, x: Any, axis: int, inverse: bool, onesided: bool, shape: tuple[int, ...], length: int) -> Any:
        operands = [x, g.op("Constant", value_t=torch.tensor(length))] if inverse and onesided else [x]
        result = g.op("DFT", *operands, axis_i=axis, inverse_i=int(inverse), onesided_i=int(onesided))
        sizes = list(shape)
        sizes[axis] = length if inverse or not onesided else length // 2 + 1
        sizes[-1] = 1 if inverse and onesided else 2
        result.setType(x.type().with_sizes(sizes))
        return result


def _transformed(x: Any, axis: int, *, inverse: bool = False, onesided: bool = False, length: int = 0) -> Any:
    """Transform one axis of a real tensor or a pair."""
    pair = isinstance(x, ComplexPair)
    stacked = torch.stack((x.real, x.imag), -1) if pair else x.unsqueeze(-1)
    axis %= stacked.dim() - 1
    shape = tuple(map(int, stacked.shape))
    y = WrittenTransform.apply(stacked, axis, inverse, onesided, shape, length or shape[axis])
    return y[..., 0] if inverse and onesided else ComplexPair(y[..., 0], y[..., 1])


def _resized(x: Any, axis: int, size: int | None) -> Any:
    """x with the axis cut to a size, or padded with zeros up to it."""
    have = int(x.shape[axis])
    if size is None or int(size) == have:
        return x
    if size < have:
        return x.narrow(axis, 0, int(size))
    pads = [0, 0] * (x.dim() - axis % x.dim())
    pads[-1] = int(size) - have
    return F.pad(x, pads)


def _scaled(x: Any, points: int, norm: str | None, inverse: bool) -> Any:
    """Scale by torch's `norm`: the direction that divides by the number of points. `DFT` itself divides in the inverse."""
    by_inverse, by_forward = {"backward": (1.0, 0.0), "forward": (0.0, 1.0), "ortho": (0.5, 0.5)}[norm or "backward"]
    power = 1.0 - by_inverse if inverse else -by_forward
    return x if not power else x * float(points) ** power


def _axes(x: Any, sizes: Dims, dims: Dims, default: Sequence[int]) -> list[tuple[int, int | None]]:
    """Axis and size of each one-axis transform in a transform of several axes."""
    if dims is None:
        dims = default if sizes is None else range(-len(sizes), 0)  # type: ignore[arg-type]
        dims = range(-x.dim(), 0) if dims is None else dims
    dims = [dims] if isinstance(dims, int) else list(dims)
    wanted = [None] * len(dims) if sizes is None else list(sizes)  # type: ignore[arg-type]
    return [(axis % x.dim(), None if size in (None, -1) else size) for axis, size in zip(dims, wanted, strict=True)]


def _transform(
    inverse: bool, real: bool, several: Sequence[int] | None = None, single: bool = False
) -> Callable[..., Any]:
    """fft, ifft, rfft, irfft (single), and their forms for several axes.

    A real signal's last axis is transformed first, to one side; an inverse transforms it last, from one side.
    """

    def transform(
        input: Any, n: Any = None, dim: Any = -1 if single else None, norm: str | None = None, **named: Any
    ) -> Any:
        axes = [(dim % input.dim(), n)] if single else _axes(input, named.get("s", n), dim, several)  # type: ignore[arg-type]
        if real and inverse and not isinstance(input, ComplexPair):
            input = ComplexPair(input, torch.zeros_like(input))
        points = 1
        last = axes.pop() if real and inverse else None
        for number, (axis, size) in enumerate(reversed(axes) if real and not inverse else axes):
            input = _resized(input, axis, size)
            points *= int(input.shape[axis])
            input = _transformed(input, axis, inverse=inverse, onesided=real and not inverse and number == 0)
        if last is not None:
            axis, size = last
            length = 2 * (int(input.shape[axis]) - 1) if size is None else int(size)
            input = _resized(input, axis, length // 2 + 1)
            input = _transformed(input, axis, inverse=True, onesided=True, length=length)
            points *= length
        return _scaled(input, points, norm, inverse)

    return transform


def _shifted(sign: int) -> Callable[..., Any]:
    """fftshift and ifftshift: axes rolled by half."""

    def shift(input: Any, dim: Dims = None) -> Any:
        dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
        for axis in dims:
            size = int(input.shape[axis])
            input = input.roll(size // 2 if sign > 0 else (size + 1) // 2, axis)
        return input

    return shift


def _window(given: torch.Tensor | None, length: int, points: int, like: torch.Tensor) -> torch.Tensor:
    """The window of an STFT, centred in `points`; ones if no window is given."""
    window = torch.ones(length).to(like) if given is None else given
    before = (points - int(window.shape[0])) // 2
    return F.pad(window, (before, points - int(window.shape[0]) - before)) if points > window.shape[0] else window


def _stft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Spectra (…, bins, frames) of a signal's windows. Source: torch.stft."""
    if isinstance(input, ComplexPair) or onesided is False:
        raise ImportFailed("an STFT with two sides is not supported; allowed: real signals, one side")
    hop, single = hop_length or n_fft // 4, input.dim() == 1
    signal = input.unsqueeze(0) if single else input
    if center:
        signal = F.pad(signal.unsqueeze(1), (n_fft // 2, n_fft // 2), mode=pad_mode)[:, 0]
    frames = signal.unfold(-1, n_fft, hop) * _window(window, win_length or n_fft, n_fft, signal)
    spectrum = _transformed(frames, -1, onesided=True).transpose(-1, -2)
    spectrum = spectrum * (1 / sqrt(n_fft)) if normalized else spectrum
    spectrum = spectrum[0] if single else spectrum
    return spectrum if return_complex else torch.stack((spectrum.real, spectrum.imag), -1)


def _istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """Signal from spectra (…, bins, frames): overlapping windows are added up. Source: torch.istft."""
    if onesided is False or return_complex or not isinstance(input, ComplexPair):
        raise ImportFailed("an inverse STFT of real numbers, or with two sides, is not supported; allowed: one side")
    hop, single = hop_length or n_fft // 4, input.dim() == 2
    spectrum = input.unsqueeze(0) if single else input
    spectrum = spectrum * sqrt(n_fft) if normalized else spectrum  # type: ignore[operator]
    frames = _transformed(spectrum, -2, inverse=True, onesided=True, length=n_fft)  # (B, n_fft, frames)
    shape = _window(window, win_length or n_fft, n_fft, frames)
    basis = torch.eye(n_fft).to(frames).unsqueeze(1)
    signal = F.conv_transpose1d(frames * shape.unsqueeze(-1), basis, stride=hop)[:, 0]
    weights = (shape * shape).unsqueeze(-1).expand(n_fft, int(frames.shape[-1])).unsqueeze(0)
    signal = signal / F.conv_transpose1d(weights, basis, stride=hop)[:, 0].clamp_min(1e-11)
    start = n_fft // 2 if center else 0
    stop = start + length if length is not None else int(signal.shape[-1]) - start
    signal = signal[..., start:stop]
    return signal[0] if single else signal


class TracedUnpooling(torch.autograd.Function):
    """Write values (B, C, *S) to positions of a flattened map of `shape` that is zero elsewhere, as ONNX's MaxUnpool."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        positions: torch.Tensor,
        kernel: tuple[int, ...],
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> torch.Tensor:
        result = torch.zeros((*shape[:2], prod(shape[2:])), dtype=x.dtype, device=x.device)
        return result.scatter(2, positions.flatten(2), x.flatten(2)).reshape(shape)

    @staticmethod
    def symbolic(
        g: Any,
        x: Any,
        positions: Any,
        kernel: tuple[int, ...],
        strides: tuple[int, ...],
        pads: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> Any:
        target = g.op("Constant", value_t=torch.tensor(shape))
        settings = {"kernel_shape_i": list(kernel), "strides_i": list(strides), "pads_i": [*pads, *pads]}
        result = g.op("MaxUnpool", x, positions, target, **settings)
        result.setType(x.type().with_sizes(list(shape)))
        return result


def _max_unpool(rank: int) -> Callable[..., torch.Tensor]:
    """max_unpool2d and its variants; torch's own check of sizes cannot be traced."""

    def unpool(
        input: torch.Tensor,
        indices: torch.Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        output_size: Any = None,
    ) -> torch.Tensor:
        kernel, step, pad = (
            [v] * rank if isinstance(v, int) else list(v) for v in (kernel_size, stride or kernel_size, padding)
        )
        sizes = [
            (int(n) - 1) * s + k - 2 * p for n, s, k, p in zip(input.shape[-rank:], step, kernel, pad, strict=True)
        ]
        sizes = [int(n) for n in output_size[-rank:]] if output_size is not None else sizes
        shape = (*map(int, input.shape[:-rank]), *sizes)
        return TracedUnpooling.apply(input, indices, tuple(kernel), tuple(step), tuple(pad), shape)

    return unpool


def _embedding_bag(
    input: torch.Tensor,
    weight: torch.Tensor,
    offsets: torch.Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> torch.Tensor:
    """Bags (B, T) of tokens -> the sum, mean or maximum (B, F) of their rows. Source: torch.nn.functional.embedding_bag."""
    if input.dim() != 2 or max_norm is not None or (mode == "max" and padding_idx is not None):
        raise ImportFailed(
            "EmbeddingBag with offsets, max_norm, or padding in mode max is not supported; allowed: bags (B, T) of one "
            "length; pad them and use nn.Embedding"
        )
    rows_BTF = F.embedding(input, weight)
    if mode == "max":
        return rows_BTF.amax(1)
    if per_sample_weights is not None:
        rows_BTF = rows_BTF * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows_BTF.sum(1) if mode == "sum" else rows_BTF.mean(1)
    counted_BT1 = (input != padding_idx % weight.shape[0]).to(rows_BTF.dtype).unsqueeze(-1)
    summed_BF = (rows_BTF * counted_BT1).sum(1)
    return summed_BF if mode == "sum" else summed_BF / counted_BT1.sum(1).clamp_min(1.0)


def _as_complex(x: torch.Tensor) -> ComplexPair:
    return ComplexPair(x[..., 0], x[..., 1])


def _filled(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """zeros and similar functions; for a complex type they return a pair."""

    def fill(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        if dtype is None or not dtype.is_complex:
            return function(*args, **kwargs, **({} if dtype is None else {"dtype": dtype}))
        real = function(*args, **kwargs, dtype=torch.float32)
        return ComplexPair(real, torch.zeros_like(real))

    return fill


def _frequencies(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """fftfreq and rfftfreq, as constants."""
    return lambda *args, **kwargs: torch.tensor(function(*args, **kwargs).tolist())


FUNCTIONS: Mapping[Any, Callable[..., Any]] = {
    torch.fft.fft: _transform(False, False, single=True),
    torch.fft.ifft: _transform(True, False, single=True),
    torch.fft.fft2: _transform(False, False, (-2, -1)),
    torch.fft.ifft2: _transform(True, False, (-2, -1)),
    torch.fft.fftn: _transform(False, False),
    torch.fft.ifftn: _transform(True, False),
    torch.fft.rfft: _transform(False, True, single=True),
    torch.fft.rfft2: _transform(False, True, (-2, -1)),
    torch.fft.rfftn: _transform(False, True),
    torch.fft.irfft: _transform(True, True, single=True),
    torch.fft.irfft2: _transform(True, True, (-2, -1)),
    torch.fft.irfftn: _transform(True, True),
    torch.fft.fftshift: _shifted(1),
    torch.fft.ifftshift: _shifted(-1),
    torch.stft: _stft,
    torch.Tensor.stft: _stft,
    torch.istft: _istft,
    torch.Tensor.istft: _istft,
    torch.complex: ComplexPair,
    torch.polar: polar,
    torch.view_as_complex: _as_complex,
    F.embedding_bag: _embedding_bag,
    F.max_unpool1d: _max_unpool(1),
    F.max_unpool2d: _max_unpool(2),
    F.max_unpool3d: _max_unpool(3),
}
"""Replacement for each torch function."""
SOURCES: Mapping[Any, Callable[..., Any]] = {
    **{function: _filled(function) for function in (torch.zeros, torch.ones, torch.empty)},
    **{function: _frequencies(function) for function in (torch.fft.fftfreq, torch.fft.rfftfreq)},
}
"""Replacements for functions without operands; they call torch's own function."""
CONVERSIONS = frozenset(("to", "type", "cfloat", "cdouble"))


class WrittenOut(TorchFunctionMode):
    """While active, functions that the exporter cannot express are computed by their replacements.

    pairs: real tensors (…, 2) that stand for complex ones.
    """

    def __init__(self, pairs: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._pairs = {id(tensor): tensor for tensor in pairs}

    def __torch_function__(
        self, func: Any, types: Collection[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if self._pairs:
            args, named = self._lifted(args), self._lifted(named)
        name = name_of(func)
        if func in SOURCES:
            return SOURCES[func](*args, **named)
        if func in FUNCTIONS:
            with self:
                return FUNCTIONS[func](*args, **named)
        if has_pair(args) or has_pair(named) or (name in CONVERSIONS and _asks_for_complex(name, args, named)):
            with self:
                return apply_to_pairs("to" if name in ("cfloat", "cdouble", "type") else name, func, args, named)
        return func(*args, **named)

    def _lifted(self, value: Any) -> Any:
        """Arguments in which pairs replace the complex tensors."""
        if isinstance(value, torch.Tensor):
            return _as_complex(value) if id(value) in self._pairs else value
        if isinstance(value, dict):
            return {key: self._lifted(each) for key, each in value.items()}
        return type(value)(map(self._lifted, value)) if type(value) in (list, tuple) else value


def _asks_for_complex(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    wanted = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.dtype)]
    return name in ("cfloat", "cdouble") or any(one.is_complex for one in wanted)


def complex_as_pairs(module: nn.Module) -> list[torch.Tensor]:
    """Replace complex parameters and buffers of a module by real ones (…, 2) of the same names; return the new tensors."""
    found = []
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is not None and tensor.is_complex():
                    real = torch.view_as_real(tensor.detach()).clone()
                    table[name] = (
                        nn.Parameter(real, requires_grad=tensor.requires_grad) if table is part._parameters else real  # type: ignore[assignment]
                    )
                    found.append(table[name])
    return [tensor for tensor in found if tensor is not None]
