"""Images of unusual brightness or contrast are brought back to what is usual, each by itself.

Legend: B batch, C channels, H height, W width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch

from tasks.errors import UserError

FEWEST = 2
"""Source images that tell what is usual."""
SMALLEST_DEVIATION = 1e-6
PREFIX = "input."
"""Of the names of its tensors in side files."""


@dataclass(frozen=True, slots=True)
class InputAlignment:
    """Brings the mean and the deviation of each channel of an image to within `deviations` of what is usual.

    mean_C: of the means of source images; mean_spread_C: their deviation. log_C, log_spread_C: the same of the logarithms of
    the images' deviations. What is beyond `deviations` times the spread is taken off; an image within it stays, bit by bit. So
    light, contrast and haze, which change all pixels alike, are undone before the first layer, for any network, without
    a batch and without a step. Normalising each image by its own mean and contrast is old (Pizer et al., Computer Vision,
    Graphics, and Image Processing 1987); here only unusual ones change, so that usual images keep their light.
    """

    deviations: torch.Tensor
    mean_C: torch.Tensor
    mean_spread_C: torch.Tensor
    log_C: torch.Tensor
    log_spread_C: torch.Tensor

    @classmethod
    def of(cls, batches: Sequence[torch.Tensor], deviations: float) -> "InputAlignment":
        """Learned from source images (B, C, H, W). UserError for fewer than two."""
        count = sum(map(len, batches))
        if count < FEWEST:
            raise UserError(
                "source images", f"{count}", allowed=f"{FEWEST} or more", next_step="give images like those of training"
            )
        mean_BC, log_BC = (torch.cat(parts) for parts in zip(*map(_light, batches), strict=True))
        return cls(torch.tensor(deviations), mean_BC.mean(0), mean_BC.std(0), log_BC.mean(0), log_BC.std(0))

    def __call__(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The images, within what is usual."""
        mean_BC, log_BC = _light(x_BCHW)
        lighter_BC = _beyond(mean_BC - self.mean_C, self.deviations * self.mean_spread_C)
        stronger_BC = _beyond(log_BC - self.log_C, self.deviations * self.log_spread_C)
        scale, mean, lighter = (part[..., None, None] for part in (torch.expm1(-stronger_BC), mean_BC, lighter_BC))
        return x_BCHW + scale * (x_BCHW - mean) - lighter

    def tensors(self) -> dict[str, torch.Tensor]:
        """By their names in side files."""
        return {f"{PREFIX}{field.name}": getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> "InputAlignment | None":
        """Of a side file's tensors; None where they are not all there."""
        names = {field.name: f"{PREFIX}{field.name}" for field in fields(cls)}
        if not all(name in tensors for name in names.values()):
            return None
        return cls(**{field: tensors[name] for field, name in names.items()})


def _light(x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean, and logarithm of the deviation, of each channel (B, C)."""
    deviation_BC, mean_BC = torch.std_mean(x_BCHW, (2, 3))
    return mean_BC, deviation_BC.clamp(min=SMALLEST_DEVIATION).log()


def _beyond(away: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """What of a difference is beyond a slack, with its sign."""
    return away.sign() * (away.abs() - slack).clamp(min=0)
