"""torch for modules of which settings need only a part: it takes seconds to load, and is loaded on first use."""

from typing import TYPE_CHECKING

from importing import Later

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch, functional = Later("torch"), Later("torch.nn.functional")

__all__ = ["functional", "torch"]
