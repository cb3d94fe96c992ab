"""Weights that are updated as soon as their gradient is complete, and what an optimiser needs.

The state of an optimiser, such as momenta, that waits on disk between the updates of its weights.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn

from tasks.training.memory.storage import StorageCount, SwapFile

PROBE = 2**16


@contextmanager
def update_early(module: nn.Module, optimiser: torch.optim.Optimizer) -> Iterator[None]:
    """While inside, `backward()` updates every weight as soon as its gradient is complete, and frees the gradient.

    The optimiser's own `step` is not called then. Norms over all gradients cannot be clipped: they are never there
    at once.
    """
    update = updater(optimiser)
    hooks = [p.register_post_accumulate_grad_hook(update) for p in module.parameters() if p.requires_grad]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def updater(optimiser: torch.optim.Optimizer) -> Callable[[torch.Tensor], None]:
    """One step of an optimiser for one weight, whose gradient is freed then."""

    def update(weight: torch.Tensor) -> None:
        step_alone(optimiser, weight)
        weight.grad = None

    return update


def step_alone(optimiser: torch.optim.Optimizer, weight: torch.Tensor) -> None:
    """One step for a weight. Gradients of others, which micro-batches have not completed yet, stay as they are."""
    others = [p for group in optimiser.param_groups for p in group["params"] if p is not weight and p.grad is not None]
    incomplete = [other.grad for other in others]
    for other in others:
        other.grad = None
    optimiser.step()
    for other, gradient in zip(others, incomplete, strict=True):
        other.grad = gradient


@dataclass(frozen=True, slots=True)
class OptimiserCost:
    """For each byte of a trained weight: bytes of state that stay, transient bytes of an update, and its seconds."""

    state: float = 0.0
    spike: float = 0.0
    seconds: float = 0.0


def measure_optimiser(optimiser: torch.optim.Optimizer | None) -> OptimiserCost:
    """By two steps of an optimiser of the same kind and settings on one weight of 65,536 numbers."""
    if optimiser is None:
        return OptimiserCost()
    probe = nn.Parameter(torch.zeros(PROBE))
    probe.grad = torch.ones(PROBE)
    known = inspect.signature(type(optimiser)).parameters
    twin = type(optimiser)([probe], **{name: value for name, value in optimiser.defaults.items() if name in known})
    with StorageCount([probe, probe.grad]) as count:
        before = count.bytes
        twin.step()
        state = count.bytes - before
        count.peak_bytes = count.bytes
        twin.step()
    start = time.perf_counter()
    twin.step()
    taken = time.perf_counter() - start
    return OptimiserCost(state / probe.nbytes, (count.peak_bytes - count.bytes) / probe.nbytes, taken / probe.nbytes)


class OptimiserOnDisk:
    """An optimiser whose state may wait on disk; whether it does is a plan's choice (`MemoryPlan.state_on_disk`).

    Each weight's state is read for its update, and written back behind it. While it waits, `optimiser.state` does not have
    it; at the end of the context everything is there again, so that checkpoints are complete.
    folder: of the file, which has no name; it needs as much room as the state.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, folder: str | None = None) -> None:
        self.optimiser = optimiser
        self._disk = SwapFile(folder)
        self._keys: dict[tuple[torch.Tensor, str], int] = {}
        self._waiting: dict[torch.Tensor, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bring_back()
        self._disk.__exit__()

    def put_away(self) -> None:
        """All state to disk."""
        for weight in list(self.optimiser.state):
            self._put_away(weight)

    def bring_back(self) -> None:
        """All state into `optimiser.state`."""
        for weight in list(self._waiting):
            self._bring_back(weight)

    def update(self, weight: torch.Tensor) -> None:
        """One step for a weight, whose gradient is freed then; its state is on disk before and afterwards."""
        self._bring_back(weight)
        step_alone(self.optimiser, weight)
        weight.grad = None
        self._put_away(weight)

    def _put_away(self, weight: torch.Tensor) -> None:
        state = self.optimiser.state[weight]
        large = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.dim()]
        for name in large:
            key = self._keys.setdefault((weight, name), len(self._keys))
            self._disk.write(key, state.pop(name))
            self._disk.wait(key)
        self._waiting.setdefault(weight, []).extend(large)

    def _bring_back(self, weight: torch.Tensor) -> None:
        for name in self._waiting.pop(weight, ()):
            key = self._keys[weight, name]
            self.optimiser.state[weight][name] = self._disk.fetch(key)
            self._disk.wait(key)


def plain_optimiser(optimiser: "torch.optim.Optimizer | OptimiserOnDisk | None") -> torch.optim.Optimizer | None:
    """The optimiser itself."""
    return optimiser.optimiser if isinstance(optimiser, OptimiserOnDisk) else optimiser
