"""Live objects of the calling process under names for settings, with digests of their content as keys of stages.

The digest of a network counts its class and tensors; of samples their number and up to `SEEN` of them, evenly spaced; of a
function its code, the values in its closure and its defaults.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tasks.base.own_code import LIVE, LIVE_NAME
from tasks.data.own import Data, Samples, data_of

SEEN = 64
"""Largest number of samples of a split in its digest."""
DEEPEST = 6
"""Nesting of values in a digest."""


def named(value: Any, called: str, content: Iterator[bytes]) -> str:
    """Register an object under a name with the digest of its content. called: its readable part."""
    plain = "".join(letter for letter in called if letter.isalnum() or letter == "_")
    name = f"{LIVE_NAME}:{plain}-{_digest(content)}"
    LIVE[name] = value
    return name


def live_network(module: nn.Module) -> str:
    """The name of a network, as a function that gives it."""
    return named(lambda: module, type(module).__name__, _of_module(module))


def live_function(function: Callable[..., Any]) -> str:
    """The name of a loss or a score."""
    called = getattr(function, "__name__", type(function).__name__)
    return named(function, called, _of(function, DEEPEST))


def live_data(data: Any) -> str:
    """The name of samples."""
    found = data_of(data, "data")
    return named(found, type(found.train).__name__, _of_data(found))


def weights_digest(module: nn.Module) -> str:
    """A digest of a network's class and tensors."""
    return _digest(_of_module(module))


def _digest(content: Iterable[bytes]) -> str:
    """A digest of parts, each with its length."""
    digest = hashlib.sha256()
    for part in content:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]


def _of_module(module: nn.Module) -> Iterator[bytes]:
    yield _source(type(module))
    yield repr(module).encode()
    for name, tensor in module.state_dict().items():
        yield name.encode()
        if isinstance(tensor, torch.Tensor):
            yield _bytes(tensor.detach().cpu())


def _of_data(data: Data) -> Iterator[bytes]:
    for name in ("train", "validation", "test", "labelled"):
        given = getattr(data, name)
        if given is None:
            continue
        samples = Samples(given, f"data, {name}")
        places = np.unique(np.linspace(0, len(samples) - 1, min(SEEN, len(samples))).astype(int)).tolist()
        yield f"{name} {len(samples)}".encode()
        with ThreadPoolExecutor(1) as pool:
            yield from _of(samples.read(places, pool), DEEPEST)
    yield repr((tuple(data.inputs or ()), tuple(data.classes))).encode()
    yield from _of(data.preparation, DEEPEST)


def _of(value: Any, left: int) -> Iterator[bytes]:
    """The content of a value, down to `left` levels."""
    yield type(value).__qualname__.encode()
    if isinstance(value, torch.Tensor):
        yield _bytes(value.detach().cpu())
    elif isinstance(value, np.ndarray):
        yield repr((value.dtype, value.shape)).encode()
        yield np.ascontiguousarray(value).tobytes() if value.dtype != object else repr(value.tolist()).encode()
    elif isinstance(value, nn.Module):
        yield from _of_module(value)
    elif value is None or isinstance(value, str | bytes | int | float | complex):
        yield repr(value).encode()
    elif left:
        yield from _of_parts(value, left - 1)


def _of_parts(value: Any, left: int) -> Iterator[bytes]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _of(key, left)
            yield from _of(one, left)
    elif isinstance(value, list | tuple | set | frozenset):
        for one in value:
            yield from _of(one, left)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _of(getattr(value, field.name), left)
    elif inspect.isfunction(value) or inspect.ismethod(value):
        function = value.__func__ if inspect.ismethod(value) else value
        yield from _of_code(function.__code__)
        for one in (*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ())):
            yield from _of(one, left)
        if inspect.ismethod(value):
            yield from _of(value.__self__, left)
    elif isinstance(value, type):
        yield _source(value)
    elif hasattr(value, "__dict__"):
        yield _source(type(value))
        yield from _of(vars(value), left)


def _of_code(code: Any) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for one in code.co_consts:
        yield from (_of_code(one) if inspect.iscode(one) else [repr(one).encode()])


def _source(kind: type) -> bytes:
    """The source of a class; its name if there is no source, as in a prompt."""
    try:
        return inspect.getsource(kind).encode()
    except (OSError, TypeError):
        return kind.__qualname__.encode()


def _bytes(tensor: torch.Tensor) -> bytes:
    """Type, shape and content of a tensor."""
    described = repr((tensor.dtype, tuple(tensor.shape))).encode()
    return (
        described + tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else described
    )
