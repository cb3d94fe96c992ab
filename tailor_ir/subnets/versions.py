"""Marks of tensors that differ after every change, so that values computed from the tensors can be cached until then.

Torch counts the changes of each tensor, but not those by its fused optimisers. Their steps are counted here for the whole
process; the only cost is an occasional needless recomputation.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


@dataclass(slots=True)
class _FusedSteps:
    """The number of steps of fused optimisers so far; a hook of torch."""

    count: int = 0

    def __call__(self, optimiser: torch.optim.Optimizer, arguments: Any, options: Any) -> None:
        self.count += any(group.get("fused") for group in optimiser.param_groups)


_fused = _FusedSteps()
register_optimizer_step_post_hook(_fused)


def version_of(tensors: Sequence[torch.Tensor]) -> Hashable:
    """The present mark of tensors; None for tensors of inference mode, whose changes nobody counts."""
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return (_fused.count, *[(tensor.data_ptr(), tensor._version) for tensor in tensors])
