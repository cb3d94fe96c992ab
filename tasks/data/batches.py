"""Batches of inputs, targets and outputs: one tensor, several in order, or several by name.

Legend: B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, Union, cast

from tasks.data.torch_later import torch

Inputs = Union["torch.Tensor", tuple["torch.Tensor", ...]]
"""A batch: one tensor, or, for samples with several inputs, one tensor each, in the order of the network's inputs."""
Nested = Union["torch.Tensor", tuple["torch.Tensor", ...], dict[str, "torch.Tensor"]]
"""Inputs, targets or outputs of a batch: one tensor, several, or several by name; the first axis of each is B."""


def tensors(x: Nested) -> tuple[torch.Tensor, ...]:
    """The tensor of each input, target or output."""
    if isinstance(x, torch.Tensor):
        return (x,)
    return tuple(x.values()) if isinstance(x, dict) else tuple(x)


NestedT = TypeVar("NestedT", bound=Nested)


def each(x: NestedT, change: Callable[[torch.Tensor], torch.Tensor]) -> NestedT:
    """The batch with every tensor changed."""
    return _like(x, map(change, tensors(x)))


def _like(x: NestedT, changed: Iterable[torch.Tensor]) -> NestedT:
    """Tensors in the form of `x`."""
    if isinstance(x, torch.Tensor):
        (found,) = changed
        return cast("NestedT", found)
    return cast("NestedT", dict(zip(x, changed, strict=True)) if isinstance(x, dict) else tuple(changed))


def only(x: Nested) -> torch.Tensor:
    """The tensor of the only input; samples with several inputs were refused before."""
    assert isinstance(x, torch.Tensor), "samples of several inputs are refused before"
    return x


def samples_in(x: Nested) -> int:
    """The number of samples B."""
    return len(tensors(x)[0])


def rows(x: NestedT, first: int, stop: int) -> NestedT:
    """The samples from `first` to before `stop`."""
    return each(x, lambda one: one[first:stop])


def pieces(x: NestedT, size: int) -> list[NestedT]:
    """The batch in pieces of at most `size` samples."""
    return [_like(x, parts) for parts in zip(*(one.split(size) for one in tensors(x)), strict=True)]


def concatenated(batches: Sequence[NestedT]) -> NestedT:
    """All samples of some batches in one batch."""
    return _like(batches[0], map(torch.cat, zip(*map(tensors, batches), strict=True)))


def answers(network: Callable[..., Any], x: Inputs) -> Any:
    """A network's outputs for a batch, with the inputs in order: a tensor, a tuple of several, or several by name."""
    found = network(*tensors(x))
    if isinstance(found, Mapping):
        return dict(found)
    return tuple(found) if isinstance(found, list) else found
