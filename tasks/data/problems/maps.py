"""Raw outputs that are maps (B, C, h, w), of any height and width. Legend: B batch, C channels or classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from importing.lazy import Later

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")


def enlarged(maps_BChw: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Maps resized to (H, W), unchanged if they have this size: (B, C, H, W)."""
    if tuple(maps_BChw.shape[-2:]) == tuple(size):
        return maps_BChw
    return functional.interpolate(maps_BChw, list(size), mode="bilinear", align_corners=False)


def resized(taught_BChw: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A teacher's maps at the size of others; anti-aliased if they shrink."""
    size = like.shape[-2:]
    if taught_BChw.shape[-2:] == size:
        return taught_BChw
    return functional.interpolate(taught_BChw, size, mode="bilinear", align_corners=False, antialias=True)
