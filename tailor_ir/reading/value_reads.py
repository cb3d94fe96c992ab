"""Where a network's Python code reads values of tensors: what it decides by them is frozen in a trace."""

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
"""Functions from tensors to numbers of Python or NumPy."""
SHAPES = {torch.Tensor.size, torch.Tensor.numel, torch.Tensor.nelement}
"""Their results are tensors while torch traces, and depend on no values."""
PLAIN = {bool, int, float, str, torch.Size, torch.dtype, torch.device}
"""Types of results that hold no tensor."""
PACKAGES = frozenset(("site-packages", "dist-packages"))
"""Folders that hold other people's code."""
TORCH_FOLDER = f"{Path(torch.__file__).parent}{os.sep}"


class ValueReads(TorchFunctionMode):
    """While active, notes where Python reads values that depend on `sources`, by name. Shapes are no values."""

    def __init__(self, sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._origins = WeakIdKeyDictionary()
        for name, tensor in sources.items():
            self.add(name, tensor)
        self.places: dict[str, frozenset[str]] = {}
        """`file:line` of each read, in the order of the first ones, and the sources that it depends on."""
        self.decisions: dict[str, set[object]] = {}
        """`file:line` of each read of a truth value, and the values that were read."""

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """One more source; a tensor may have several names."""
        self._origins[tensor] = self._origins.get(tensor, frozenset()) | {name}

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`; its results depend on what its operands depend on."""
        result = func(*args, **(kwargs or {}))
        if func in SHAPES or (type(result) in PLAIN and func not in READS):
            return result
        found = [self._origins[tensor] for tensor in tensors_in((args, kwargs)) if tensor in self._origins]
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
    """The tensors of a value, in order: itself, or those of a dictionary, tuple, list or dataclass."""
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for _, part in _parts(value):
            yield from tensors_in(part)


def names_in(value: object, name: str = "") -> Iterator[str]:
    """Names of the tensors of a value, in the order of `tensors_in`: keys, fields and numbers, joined by dots."""
    if isinstance(value, torch.Tensor):
        yield name
    else:
        for key, part in _parts(value):
            yield from names_in(part, f"{name}.{key}" if name else str(key))


def has_names(value: object) -> bool:
    """Whether a value calls its parts by names: a dictionary or a dataclass."""
    return isinstance(value, Mapping) or (is_dataclass(value) and not isinstance(value, type))


def _parts(value: object) -> Iterable[tuple[object, object]]:
    """Parts of a value, by key, field or number; a dictionary that is a dataclass, too, as those of transformers, by key."""
    if type(value) in PLAIN:
        return ()
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in fields(value))
    return enumerate(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _calling_line() -> str:
    """The innermost line that is neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((TORCH_FOLDER, __file__)):
        frame = frame.f_back
    return shown_line(Path(frame.f_code.co_filename), frame.f_lineno)


def shown_line(path: Path, line: int) -> str:
    """`file:line`, the file as it is seen from the working folder, or from the folder of packages that it is in."""
    here, inside = Path.cwd(), [index for index, part in enumerate(path.parts) if part in PACKAGES]
    if inside:
        return f"{Path(*path.parts[inside[-1] + 1 :])}:{line}"
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{line}"
