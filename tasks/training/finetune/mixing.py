"""Mixup and CutMix of micro-batches. Legend: B batch, C channels, H height, W width, K classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from importing.lazy import Later

if TYPE_CHECKING:
    import torch
    from torch.nn import functional
else:
    torch = Later("torch")
    functional = Later("torch.nn.functional")


class Mixing(BaseModel):
    """How the images of a micro-batch are mixed with each other; nothing is mixed by default.

    Sources: mixup (Zhang et al., ICLR 2018), CutMix (Yun et al., ICCV 2019).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    mixup_alpha: float = Field(default=0.0, ge=0)
    """Two images are blended by a share of Beta(alpha, alpha); 0: never."""
    cutmix_alpha: float = Field(default=0.0, ge=0)
    """A box of an image, its area drawn from Beta(alpha, alpha), is replaced by that of another image; 0: never."""
    probability: float = Field(default=1.0, ge=0, le=1)
    """Share of the micro-batches that are mixed; each by mixup or CutMix, at equal odds if both are on."""

    @property
    def is_on(self) -> bool:
        """Whether anything is mixed."""
        return self.probability > 0 and max(self.mixup_alpha, self.cutmix_alpha) > 0


def mix(
    x_BCHW: torch.Tensor, y_B: torch.Tensor, settings: Mixing, classes: int, key: tuple[int, int, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixed images and their soft labels (B, K), in the type of the images; x_BCHW itself is not changed.

    Every image is mixed with its neighbour in the micro-batch. `key` is (seed, step, place of the micro-batch in the global
    batch) and decides everything: the method, the share and the box. The global random state is not changed.
    """
    from torchvision.transforms import v2

    soft_BK = functional.one_hot(y_B, classes).to(x_BCHW.dtype)
    ways = [
        way(alpha=alpha)
        for way, alpha in ((v2.MixUp, settings.mixup_alpha), (v2.CutMix, settings.cutmix_alpha))
        if alpha > 0
    ]
    rng = np.random.default_rng(key)
    if not ways or rng.random() >= settings.probability:
        return x_BCHW, soft_BK
    way = ways[rng.integers(len(ways))]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(rng.integers(2**63)))
        mixed_BCHW, mixed_BK = way(x_BCHW, soft_BK)
    return mixed_BCHW, mixed_BK
