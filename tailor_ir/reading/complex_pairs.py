"""Complex numbers as pairs of real tensors, the only form that ONNX can express.

`ComplexPair` replaces a complex tensor while a network is traced. Functions of complex tensors are looked up by name;
functions that only move elements, or are linear, are applied to both parts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tailor_ir.errors import ImportFailed

Real = torch.Tensor
ALIKE = frozenset(
    (
        "broadcast_to", "cat", "chunk", "clone", "concat", "concatenate", "contiguous", "cumsum", "detach", "diff", "expand",
        "expand_as", "fftshift", "flatten", "flip", "gather", "getitem", "hstack", "ifftshift", "index_select", "mean",
        "movedim", "narrow", "neg", "negative", "permute", "repeat", "repeat_interleave", "reshape", "reshape_as",
        "resolve_conj", "resolve_neg", "roll", "select", "split", "squeeze", "stack", "sum", "swapaxes", "swapdims", "t",
        "take_along_dim", "tensor_split", "tile", "transpose", "tril", "triu", "unbind", "unflatten", "unfold", "unsqueeze",
        "unsqueeze_", "view", "view_as", "vstack", "zeros_like",
    )
)  # fmt: skip
"""Functions that are applied to the real and the imaginary part separately."""
OF_SHAPE = frozenset(("device", "dim", "layout", "ndim", "ndimension", "numel", "requires_grad", "shape", "size"))
PRODUCTS = frozenset(("bmm", "einsum", "linear", "matmul", "mm", "mv", "tensordot"))
"""Functions that are linear in each of two operands."""
SAME = {
    "absolute": "abs", "arccos": "acos", "conj_physical": "conj", "divide": "div", "iadd": "add", "imul": "mul", "isub": "sub",
    "itruediv": "div", "multiply": "mul", "subtract": "sub", "true_divide": "div", "truediv": "div",
}  # fmt: skip


class ComplexPair:
    """A complex tensor: real and imaginary part of the same shape."""

    def __init__(self, real: Real, imag: Real) -> None:
        self.real, self.imag = real, imag

    dtype = torch.complex64
    H = property(lambda self: self.mH)
    T = property(lambda self: ComplexPair(self.real.T, self.imag.T))
    mT = property(lambda self: ComplexPair(self.real.mT, self.imag.mT))
    mH = property(lambda self: ComplexPair(self.real.mT, -self.imag.mT))

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Apply a torch function to pairs."""
        return apply_to_pairs(name_of(func), func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        """Methods and attributes of tensors, applied to the pair."""
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(torch.Tensor, name)
        if callable(found):
            return lambda *args, **kwargs: apply_to_pairs(name, found, (self, *args), kwargs)
        return apply_to_pairs(name, found.__get__, (self,), {})

    def __getitem__(self, index: Any) -> "ComplexPair":
        return ComplexPair(self.real[index], self.imag[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        real, imag = parts_of(value)
        self.real[index], self.imag[index] = real, imag

    def __len__(self) -> int:
        return len(self.real)

    def __neg__(self) -> "ComplexPair":
        return ComplexPair(-self.real, -self.imag)


def _operator(name: str) -> Callable[[ComplexPair, Any], Any]:
    return lambda self, other: apply_to_pairs(name, None, (self, other), {})


for _name in ("add", "sub", "mul", "truediv", "matmul", "pow", "radd", "rsub", "rmul", "rtruediv", "rmatmul"):
    setattr(ComplexPair, f"__{_name}__", _operator(_name))


def name_of(func: Any) -> str:
    """Name of a function, or of the attribute if the function is an attribute's getter."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = func.__self__.__name__
    name = name.strip("_") if name.startswith("__") else name
    return SAME.get(name, name)


def parts_of(value: Any) -> tuple[Any, Any]:
    """Real and imaginary part of a pair, a real tensor or a number."""
    if isinstance(value, ComplexPair):
        return value.real, value.imag
    if isinstance(value, complex):
        return value.real, value.imag
    if isinstance(value, torch.Tensor):
        return value, torch.zeros_like(value)
    return value, 0.0


def has_pair(value: object) -> bool:
    """Whether the arguments contain a pair or a complex number."""
    if isinstance(value, ComplexPair | complex):
        return True
    if isinstance(value, Mapping):
        return any(map(has_pair, value.values()))
    return isinstance(value, list | tuple) and any(map(has_pair, value))


def apply_to_pairs(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply a function to complex tensors. ImportFailed: the function is not known."""
    name = SAME.get(name, name)
    if name in RULES:
        return RULES[name](*args, **kwargs)
    if name in OF_SHAPE:
        return _attribute(name, args, kwargs)
    if name in PRODUCTS:
        return _product(name, func, args, kwargs)
    if name in ALIKE:
        real, imag = (
            func(*(_take(each, part) for each in args), **{key: _take(each, part) for key, each in kwargs.items()})
            for part in (0, 1)
        )
        return _joined(real, imag)
    raise ImportFailed(
        f"function '{name}' of complex numbers is not supported; write it in real numbers (torch.view_as_real)"
    )


def _attribute(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    found = getattr(args[0].real, name)
    return found(*args[1:], **kwargs) if callable(found) else found


def _take(value: Any, part: int) -> Any:
    """An argument in which the real (0) or the imaginary part (1) replaces each pair; lists may also hold real tensors."""
    if isinstance(value, ComplexPair | complex):
        return parts_of(value)[part]
    if isinstance(value, list | tuple) and has_pair(value):
        return type(value)(parts_of(each)[part] for each in value)
    return value


def _joined(real: Any, imag: Any) -> Any:
    if isinstance(real, torch.Tensor):
        return ComplexPair(real, imag)
    return type(real)(map(_joined, real, imag)) if isinstance(real, list | tuple) else real


def _product(name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply a function that is linear in each of two operands; real operands stay real."""
    given = [*args[0]] if name == "einsum" and isinstance(args[0], list | tuple) else [*args]
    lead = given[:1] if name == "einsum" else []
    operands = given[len(lead) :]
    operands = [*operands[0]] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    function = getattr(torch, name) if name != "linear" else torch.nn.functional.linear
    if len(operands) < 2:
        return _joined(*(function(*lead, _take(operands[0], part)) for part in (0, 1)))  # type: ignore[call-arg]
    a, b, *rest = operands
    if len(operands) > 2 and name == "einsum":
        raise ImportFailed("einsum of more than two complex operands is not supported; write it as several")

    def of(x: Real, y: Real) -> Real:
        return function(*lead, x, y, **kwargs)  # type: ignore[call-arg]

    if not isinstance(b, ComplexPair):
        pair = ComplexPair(of(a.real, b), of(a.imag, b))
    elif not isinstance(a, ComplexPair):
        pair = ComplexPair(of(a, b.real), of(a, b.imag))
    else:
        pair = ComplexPair(of(a.real, b.real) - of(a.imag, b.imag), of(a.real, b.imag) + of(a.imag, b.real))
    return pair + rest[0] if rest and rest[0] is not None else pair


# -- rules of single functions ---------------------------------------------------------------------------------------


def _add(a: Any, b: Any, *, alpha: float = 1) -> ComplexPair:
    (a_real, a_imag), (b_real, b_imag) = parts_of(a), parts_of(b)
    return ComplexPair(a_real + alpha * b_real, a_imag + alpha * b_imag)


def _multiply(a: Any, b: Any) -> ComplexPair:
    if not isinstance(a, ComplexPair | complex) or not isinstance(b, ComplexPair | complex):
        pair, factor = (a, b) if isinstance(a, ComplexPair | complex) else (b, a)
        real, imag = parts_of(pair)
        return ComplexPair(real * factor, imag * factor)
    (a_real, a_imag), (b_real, b_imag) = parts_of(a), parts_of(b)
    return ComplexPair(a_real * b_real - a_imag * b_imag, a_real * b_imag + a_imag * b_real)


def _divide(a: Any, b: Any) -> ComplexPair:
    if not isinstance(b, ComplexPair | complex):
        return ComplexPair(a.real / b, a.imag / b)
    real, imag = parts_of(b)
    square = real * real + imag * imag
    return _multiply(a, ComplexPair(real / square, -imag / square))


def _abs(x: ComplexPair) -> Real:
    return torch.sqrt(x.real * x.real + x.imag * x.imag)


def _power(x: ComplexPair, exponent: int) -> ComplexPair:
    if not isinstance(exponent, int) or not 1 <= exponent <= 4:
        raise ImportFailed(f"complex numbers to the power {exponent} are not supported; allowed: 1 to 4")
    result = x
    for _ in range(exponent - 1):
        result = _multiply(result, x)
    return result


def polar(size: Real, angle: Real) -> ComplexPair:
    """The complex tensor of this size and angle."""
    return ComplexPair(size * torch.cos(angle), size * torch.sin(angle))


def _to(x: Any, *args: Any, **kwargs: Any) -> Any:
    """Convert to a type: pairs stay complex unless a real type is requested; real tensors become pairs."""
    wanted = next((one for one in (*args, *kwargs.values()) if isinstance(one, torch.dtype)), None)
    if isinstance(x, ComplexPair):
        return x if wanted is None or wanted.is_complex else x.real.to(wanted)
    return ComplexPair(x, torch.zeros_like(x))


def _where(condition: Real, a: Any, b: Any) -> ComplexPair:
    (a_real, a_imag), (b_real, b_imag) = parts_of(a), parts_of(b)
    return ComplexPair(torch.where(condition, a_real, b_real), torch.where(condition, a_imag, b_imag))


def _pad(x: ComplexPair, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> ComplexPair:
    pads = torch.nn.functional.pad
    return ComplexPair(pads(x.real, pad, mode, value), pads(x.imag, pad, mode, None if value is None else 0.0))


def _set(x: Any, index: Any, value: Any) -> None:
    if not isinstance(x, ComplexPair):
        raise ImportFailed("complex numbers written into a real tensor are not supported; make the tensor complex")
    x[index] = value


def _copy(x: ComplexPair, value: Any, *_: Any, **__: Any) -> ComplexPair:
    x[...] = value
    return x


def _sgn(x: ComplexPair) -> ComplexPair:
    size = _abs(x)
    safe = torch.where(size == 0, torch.ones_like(size), size)
    return ComplexPair(x.real / safe, x.imag / safe)


RULES: dict[str, Callable[..., Any]] = {
    "abs": _abs,
    "add": _add,
    "add_": _add,
    "angle": lambda x: torch.atan2(x.imag, x.real),
    "conj": lambda x: ComplexPair(x.real, -x.imag),
    "copy_": _copy,
    "div": _divide,
    "exp": lambda x: polar(torch.exp(x.real), x.imag),
    "imag": lambda x: x.imag,
    "is_complex": lambda x: True,
    "is_floating_point": lambda x: False,
    "mul": _multiply,
    "pad": _pad,
    "polar": polar,
    "pow": _power,
    "radd": _add,
    "rdiv": lambda a, b: _divide(ComplexPair(*parts_of(b)), a),
    "real": lambda x: x.real,
    "rmatmul": lambda a, b: torch.matmul(b, a),
    "rmul": _multiply,
    "rsub": lambda a, b: _add(b, -a),
    "rtruediv": lambda a, b: _divide(ComplexPair(*parts_of(b)), a),
    "setitem": _set,
    "sgn": _sgn,
    "square": lambda x: _multiply(x, x),
    "sub": lambda a, b, *, alpha=1: _add(a, b, alpha=-alpha),
    "to": _to,
    "where": _where,
    "view_as_real": lambda x: torch.stack((x.real, x.imag), -1),
}
"""Functions on pairs, by name."""
