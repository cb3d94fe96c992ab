"""scikit-learn's bundled handwritten digits: 1,797 real 8x8 grey images, nothing downloaded."""

from importlib.metadata import distribution

import numpy as np
import torch
from torch.nn import functional

from tasks.data.images import jitter
from tasks.data.settings import DataSettings
from tasks.data.source import Scaling, complete_splits

FILE = "sklearn/datasets/data/digits.csv.gz"
"""File of scikit-learn, whose import takes more than a second: for each image a line of 64 pixels from 0 to 16 and the
label.
"""
CLASSES = 10


class Digits:
    """All digits in memory, scaled up once to the base resolution (bicubic)."""

    scaling = Scaling("none", "bicubic, antialiased")
    notes: tuple[str, ...] = ()

    def __init__(self, settings: DataSettings) -> None:
        table = np.loadtxt(str(distribution("scikit-learn").locate_file(FILE)), np.float32, delimiter=",")
        self.labels = table[:, -1].astype(np.int64)
        self.class_names = tuple(map(str, range(CLASSES)))
        pixels_N1HW = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8) / 16)
        size = (settings.resolution, settings.resolution)
        scaled = functional.interpolate(pixels_N1HW, size=size, mode="bicubic", align_corners=False, antialias=True)
        self._pixels_N1HW = scaled.clamp_(0, 1)
        self._channels = settings.channels

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """A random order; any is fine, since all images are in memory."""
        return rng.permutation(indices)

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """Grey images, repeated over the channels of the network."""
        x_B1HW = self._pixels_N1HW[torch.from_numpy(indices)]
        if draws is not None:
            x_B1HW = jitter(x_B1HW, draws)
        return x_B1HW.repeat(1, self._channels, 1, 1)


def open_digits(settings: DataSettings) -> tuple[Digits, dict[str, np.ndarray]]:
    """The source and its splits (1,197 / 300 / 300 by default)."""
    source = Digits(settings)
    splits = {"train": np.arange(len(source.labels))}
    return source, complete_splits(splits, source, settings)
