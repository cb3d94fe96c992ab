"""One raw output for networks with several heads: the logits of all heads, side by side."""

from collections.abc import Mapping, Sequence
from functools import wraps
from typing import Any

import torch
from torch import nn

Outputs = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]


def join_heads(module: nn.Module, heads: Mapping[str, int]) -> None:
    """Make a module with outputs (B, K) for each head return one tensor (B, sum of K). Its tensors keep their names.

    heads: K by target, in the order of the outputs; outputs by name may be in any order. If a module returns one tensor, its
    output stays unchanged. Running the module raises ValueError if its heads differ from these.
    """
    own: Any = type(module)

    @wraps(own.forward)
    def forward(self: nn.Module, *given: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return _joined(heads, own.forward(self, *given, **named))

    module.__class__ = type(own.__name__, (own,), {"forward": forward})  # copies of the module have it, too


def _joined(heads: Mapping[str, int], outputs: Outputs) -> torch.Tensor:
    if isinstance(outputs, torch.Tensor):
        return outputs
    if isinstance(outputs, Mapping) and set(outputs) == set(heads):
        logits = [outputs[name] for name in heads]
    else:
        logits = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)
    got = [int(one.shape[1]) if one.ndim == 2 else tuple(one.shape[1:]) for one in logits]
    if got != list(heads.values()):
        told = ", ".join(f"{name} {count}" for name, count in heads.items())
        raise ValueError(f"heads give {got} numbers for each sample; allowed: {told}")
    return torch.cat(logits, 1)
