"""scikit-learn's bundled handwritten digits: 1,797 real 8x8 grey images, plain or noisy; nothing is downloaded.

Noisy digits are turned, scaled and moved at random, faint, with noise. Small networks confuse them long before large
networks do, and a network learns them in a minute. Image number i shows digit i modulo 1,797; all else about the image
follows from the seed and i. A digit for training is one image, drawn anew in each epoch; all images of the other digits
are for validation and testing.

Legend: B batch, D draws; positions in an image go from -1 to 1, brightness from 0 to 1.
"""

import math
from importlib.metadata import distribution

import numpy as np
import torch
from torch.nn import functional

from tasks.data.drawn.variation import Grain, Numbers, Placing, per_image, placed
from tasks.data.images import DRAWS, jitter
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling, Source, Splits, complete_splits

FILE = "sklearn/datasets/data/digits.csv.gz"
"""File of scikit-learn, whose import takes more than a second: for each image a line of 64 pixels from 0 to 16 and the
label.
"""
CLASSES = 10


class Digits(Source):
    """All digits in memory, scaled up once to the base resolution (bicubic)."""

    scaling = Scaling("none", "bicubic, antialiased")

    def __init__(self, settings: DataSettings) -> None:
        table = np.loadtxt(str(distribution("scikit-learn").locate_file(FILE)), np.float32, delimiter=",")
        self.labels = table[:, -1].astype(np.int64)
        self.class_names = tuple(map(str, range(CLASSES)))
        pixels_N1HW = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8) / 16)
        size = (settings.resolution, settings.resolution)
        scaled = functional.interpolate(pixels_N1HW, size=size, mode="bicubic", align_corners=False, antialias=True)
        self._pixels_N1HW = scaled.clamp_(0, 1)
        self._channels = settings.channels

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Grey images, repeated over the channels of the network."""
        x_B1HW = self._pixels_N1HW[torch.from_numpy(indices)]
        if draws is not None:
            x_B1HW = jitter(x_B1HW, draws)
        return x_B1HW.repeat(1, self._channels, 1, 1)


NOISE = 0.1
"""Standard deviation of the noise."""


class NoisyDigits(Source):
    """All digits in memory; images are drawn from them."""

    def __init__(self, settings: DataSettings) -> None:
        digits = Digits(settings.model_copy(update={"channels": 1}))
        self.different = len(digits.labels)
        self.labels = digits.labels[np.arange(settings.images) % self.different]
        self.class_names = digits.class_names
        self._digits = digits
        self._seed, self._size, self._channels = settings.seed, settings.resolution, settings.channels
        self._grain = Grain(np.random.default_rng(settings.seed), self._channels, self._size)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Drawn images; `draws` turn, scale and place them, and change the noise."""
        numbers = Numbers(self._seed, indices)
        dark, contrast = numbers.between(0, 0.15), numbers.between(0.3, 0.7)
        if draws is None:
            draws = np.stack([numbers.between(0, 1).numpy() for _ in range(DRAWS)], 1)
        angle, half, x, y, start = torch.from_numpy(draws.astype(np.float32)).T
        half = 0.75 + 0.25 * half
        placing = Placing(
            half_width=half,
            half_height=half,
            shear=torch.zeros_like(half),
            angle=(2 * angle - 1) * math.radians(17),
            x=(1 - half) * (2 * x - 1),
            y=(1 - half) * (2 * y - 1),
        )
        ink_B1HW = placed(self._digits.images(indices % self.different, None), placing, self._size)
        x_B1HW = per_image(dark) + per_image(contrast) * ink_B1HW
        return torch.add(x_B1HW, self._grain.stretches(start), alpha=NOISE).clamp_(0, 1)

    def splits(self, settings: DataSettings) -> Splits:
        """One image of each training digit, and all images of the others; by shares of the digits."""
        digits = {"train": np.arange(min(settings.images, self.different))}
        held_out = complete_splits(digits, self, settings)
        image = np.arange(settings.images)
        splits = {name: image[np.isin(image % self.different, own)] for name, own in held_out.items()}
        return splits | {"train": held_out["train"]}
