"""The source's view of images: its answers, and how unusual features and confidence are.

Legend: B batch, C channels of a layer, S the other axes of a layer's input, K classes, D statistics of an image, N images.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from adaptive_runtime.weights import UsualFeatures
from adaptive_runtime.weights.profile import SMALLEST_DEVIATION
from tasks.base.errors import UserError
from tasks.evaluation.adapted.subnet import AdaptiveSubnet

FEWEST = 32
"""Source images that a profile needs at least."""


class SourceProfile:
    """The source's usual features and confidence, from images like those of training on which it was not trained.

    Features are the mean and the logarithm of the deviation of each channel at the input of each normalisation layer; an
    image's statistics are those of `UsualFeatures`. One half of the images fits `UsualFeatures`; the other half is
    `calibration_ND`.
    """

    def __init__(self, source: AdaptiveSubnet, batches: Sequence[torch.Tensor]) -> None:
        """source: in the source's state, which stays unchanged. batches: (B, C, H, W), images in random order."""
        count = sum(map(len, batches))
        if count < FEWEST:
            raise UserError("source images", f"{count}", allowed=f"{FEWEST} or more", next_step="give more images")
        self._source = source
        seen = [self._look(x_BCHW) for x_BCHW in batches]
        features = [torch.cat(parts) for parts in zip(*(layers for _, layers in seen), strict=True)]
        half = count // 2
        self._usual = UsualFeatures.of([part[:half].numpy() for part in features])
        scores = [self._scores(logits_BK, layers) for logits_BK, layers in seen]
        self.calibration_ND = np.concatenate(scores)[half:]

    def look(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.float64]]:
        """The source's logits (B, K) and the statistics (B, D)."""
        logits_BK, layers = self._look(x_BCHW)
        return logits_BK, self._scores(logits_BK, layers)

    @torch.no_grad()
    def _look(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        found: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_pre_hook(
                lambda module, inputs: found.append(_features(module, inputs[0], len(x_BCHW)))
            )
            for layer in self._source.norms.values()
        ]
        try:
            return self._source(x_BCHW), found
        finally:
            for hook in hooks:
                hook.remove()

    def _scores(self, logits_BK: torch.Tensor, layers: list[torch.Tensor]) -> NDArray[np.float64]:
        return self._usual.scores([layer.numpy() for layer in layers], logits_BK.numpy())


def _features(layer: nn.Module, x: torch.Tensor, images: int) -> torch.Tensor:
    """(B, F) of a layer's input (B, C, *S), or (B, *S, C) of LayerNorm, or (B·tokens, C)."""
    channels_last = isinstance(layer, nn.LayerNorm)
    if x.dim() == 2 and len(x) > images:
        x, channels_last = x.reshape(images, -1, x.shape[1]), True
    x_BCS = (x.movedim(-1, 1) if channels_last else x).flatten(2)
    if x_BCS.dim() < 3 or x_BCS.shape[2] == 1:
        return x_BCS.flatten(1)
    deviation, mean = torch.std_mean(x_BCS, 2)
    return torch.cat([mean, deviation.clamp(min=SMALLEST_DEVIATION).log()], 1)
