"""The state of an optimiser, such as momenta, that waits on disk between the updates of its weights."""

from typing import Self

import torch

from tasks.training.memory.disk import SwapFile
from tasks.training.memory.updating import step_alone


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
