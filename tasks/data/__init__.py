"""Images and labels for training and evaluation: digits, glyphs, image folders, Parquet shards, published data sets."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from tasks.data.dataset import Batch, Dataset
from tasks.data.digits import open_digits
from tasks.data.glyphs import open_glyphs
from tasks.data.imagefolder import open_folder
from tasks.data.parquet import open_parquet
from tasks.data.published import open_published
from tasks.data.settings import DataSettings
from tasks.data.source import Source, check_classes

OPENERS: dict[str, Callable[[DataSettings], tuple[Source, dict[str, np.ndarray]]]] = {
    "digits": open_digits,
    "glyphs": open_glyphs,
    "imagefolder": open_folder,
    "parquet": open_parquet,
    "torchvision": open_published,
}
Split = Literal["train", "validation", "test"]

__all__ = ["Batch", "DataSettings", "Dataset", "Split", "load", "load_splits"]


def load_splits(settings: DataSettings) -> dict[Split, Dataset]:
    """All three splits, opened once. Raises UserError for data that is absent, empty, malformed or lacks a class."""
    source, splits = OPENERS[settings.kind](settings)
    check_classes(source, splits, settings)
    names: tuple[Split, ...] = ("train", "validation", "test")
    return {name: Dataset(settings, source, splits[name]) for name in names}


def load(settings: DataSettings, split: Split) -> Dataset:
    """One split. Raises UserError as `load_splits` does."""
    return load_splits(settings)[split]
