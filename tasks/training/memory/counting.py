"""Peak of memory of a training step, counted: the bytes of all tensor storages that are alive at the same time.

Storages are seen where torch's dispatcher hands out tensors, and are gone when torch frees them. So the count has
everything that autograd saves, gradients, and what an optimiser keeps. Scratch memory inside a kernel (a
convolution's reordered weights) is not a tensor and is not in the count.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from profiling_agents.messages import MIB


class StorageCount(TorchDispatchMode):
    """Bytes of the storages that are alive, and their peak, while this context is entered.

    given: tensors that are there before, a network's weights and its input; they count from the beginning.
    """

    def __init__(self, given: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in given:
            self._add(tensor)

    @property
    def peak_mib(self) -> float:
        return self.peak_bytes / MIB

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(given):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return given

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def forget(_: object) -> None:
            self.bytes -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, forget)
        self.bytes += size
        self.peak_bytes = max(self.peak_bytes, self.bytes)


def tensors_of(module: nn.Module, optimiser: torch.optim.Optimizer | None = None) -> list[torch.Tensor]:
    """What a training step finds: parameters, buffers, gradients that are kept, and the optimiser's state."""
    found = [*module.parameters(), *module.buffers()]
    found += [p.grad for p in module.parameters() if p.grad is not None]
    if optimiser is not None:
        found += [t for state in optimiser.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return found
