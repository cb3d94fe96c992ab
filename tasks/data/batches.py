"""Batches of samples with one input or several. Legend: B batch, C channels, H height, W width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Union, overload

from numpy.typing import NDArray

from adaptive_runtime.samples.several import packed
from importing.lazy import Later

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

Inputs = Union["torch.Tensor", tuple["torch.Tensor", ...]]
"""A batch: one tensor, or, for samples with several inputs, one tensor each, in the order of the network's inputs."""


def tensors(x: Inputs) -> tuple[torch.Tensor, ...]:
    """The tensor of each input."""
    return (x,) if isinstance(x, torch.Tensor) else x


@overload
def each(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor: ...
@overload
def each(x: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs: ...
def each(x: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """The batch with every input changed."""
    return change(x) if isinstance(x, torch.Tensor) else tuple(map(change, x))


def only(x: Inputs) -> torch.Tensor:
    """The tensor of the only input; samples with several inputs were refused before."""
    assert isinstance(x, torch.Tensor), "samples of several inputs are refused before"
    return x


def samples_in(x: Inputs) -> int:
    """The number of samples B."""
    return len(tensors(x)[0])


def rows(x: Inputs, first: int, stop: int) -> Inputs:
    """The samples from `first` to before `stop`."""
    return each(x, lambda one: one[first:stop])


def pieces(x: Inputs, size: int) -> list[Inputs]:
    """The batch in pieces of at most `size` samples."""
    return (
        list(x.split(size)) if isinstance(x, torch.Tensor) else list(zip(*(one.split(size) for one in x), strict=True))
    )


def concatenated(batches: Sequence[Inputs]) -> Inputs:
    """All samples of some batches in one batch."""
    if isinstance(batches[0], torch.Tensor):
        return torch.cat([only(batch) for batch in batches])
    return tuple(map(torch.cat, zip(*map(tensors, batches), strict=True)))


def answers(network: Callable[..., Any], x: Inputs) -> torch.Tensor:
    """A network's outputs for a batch, with the inputs in order."""
    found: torch.Tensor = network(*tensors(x))
    return found


def arrays(x: Inputs, names: Sequence[str]) -> NDArray[Any]:
    """A batch in numpy; several inputs are packed under their names (`adaptive_runtime.samples.several.packed`)."""
    if isinstance(x, torch.Tensor):
        return x.cpu().numpy()
    return packed({name: one.cpu().numpy() for name, one in zip(names, x, strict=True)})
