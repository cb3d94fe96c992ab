"""Find places where a network's Python code reads values of tensors: decisions based on them are frozen in a trace."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

READS = {
    *(
        getattr(torch.Tensor, f"__{name}__")
        for name in ("bool", "int", "float", "complex", "index", "contains", "array")
    ),
    *(torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.equal, torch.Tensor.allclose),
    *(torch.Tensor.is_nonzero, torch.equal, torch.allclose, torch.is_nonzero),
}
"""Functions that return values of tensors as numbers of Python or NumPy."""
SHAPES = {torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement}
"""Functions whose results are tensors while torch traces, but do not depend on values."""
PLAIN = {bool, int, float, str, torch.Size, torch.dtype, torch.device}
"""Types of results that hold no tensor."""
PACKAGES = frozenset(("site-packages", "dist-packages"))
"""Folders that hold other people's code."""
TORCH_FOLDER = f"{Path(torch.__file__).parent}{os.sep}"


class ValueReads(TorchFunctionMode):
    """While active, records lines where Python reads values that depend on the named `sources`. Shapes are no values."""

    def __init__(self, sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._origins = WeakIdKeyDictionary()
        for name, tensor in sources.items():
            self.add(name, tensor)
        self.places: dict[str, frozenset[str]] = {}
        """`file:line` of each read, in order of first occurrence -> the sources that the value depends on."""
        self.decisions: dict[str, set[object]] = {}
        """`file:line` of each read -> the truth values that were read; None for other values."""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a source; a tensor may have several names."""
        self._origins[tensor] = self._origins.get(tensor, frozenset()) | {name}

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`; its results depend on the sources of its operands."""
        result = func(*args, **(kwargs or {}))
        if func in SHAPES or (type(result) in PLAIN and func not in READS):
            return result
        found = [
            self._origins[tensor]
            for tensor in tensors_in((args, kwargs) if kwargs else args)
            if tensor in self._origins
        ]
        if not found:
            return result
        origins = frozenset[str]().union(*found)
        if func in READS:
            place = _calling_line()
            self.places[place] = self.places.get(place, frozenset()) | origins
            self.decisions.setdefault(place, set()).add(result if isinstance(result, bool) else None)
        for tensor in tensors_in((result, args[:1] if _writes_in_place(func) else ())):
            self._origins[tensor] = origins
        return result


def _writes_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Tensors in a value, in order: the value itself, or the members of a dictionary, tuple, list or dataclass."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) is tuple or type(value) is list:  # most values; this runs for every call of a function
        for part in value:
            if isinstance(part, torch.Tensor):
                yield part
            elif part is not None and type(part) not in PLAIN:
                yield from tensors_in(part)
    elif value is not None:
        for _, part in _parts(value):
            yield from tensors_in(part)


def names_in(value: object, name: str = "") -> Iterator[str]:
    """Names of the tensors in a value, in the order of `tensors_in`: keys, fields and indices, joined by dots."""
    if isinstance(value, torch.Tensor):
        yield name
    else:
        for key, part in _parts(value):
            yield from names_in(part, f"{name}.{key}" if name else str(key))


def has_names(value: object) -> bool:
    """Whether the parts of a value have names: a dictionary or a dataclass."""
    return isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _parts(value: object) -> Iterable[tuple[object, object]]:
    """Parts of a value, by key, field or index; by key if it is both a dictionary and a dataclass, as in transformers."""
    if type(value) in PLAIN:
        return ()
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in fields(value))
    return enumerate(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _calling_line() -> str:
    """The innermost line outside torch and this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH_FOLDER, __file__)):
        frame = frame.f_back
    return shown_line(Path(frame.f_code.co_filename), frame.f_lineno)


def shown_line(path: Path, line: int) -> str:
    """`file:line`, with the path relative to the working folder, or to its folder of packages."""
    here, inside = Path.cwd(), [index for index, part in enumerate(path.parts) if part in PACKAGES]
    if inside:
        return f"{Path(*path.parts[inside[-1] + 1 :])}:{line}"
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"
