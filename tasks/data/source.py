"""What every kind of data gives: labels at once, images on demand."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from tasks.data.settings import DataSettings
from tasks.errors import UserError


class Source(Protocol):
    """All images of one kind of data; a split is a set of indices into it."""

    labels: np.ndarray
    """(N,) int64 class of every image."""
    class_names: tuple[str, ...]

    def shuffled(self, indices: np.ndarray, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """`indices` in a random order in which batches of `batch_size`, and equal slices of them, are read fast."""
        ...

    def images(self, indices: np.ndarray, draws: np.ndarray | None) -> torch.Tensor:
        """x_BCHW float32 in [0, 1] at the base resolution; augmented by `draws` (B, DRAWS) in [0, 1)."""
        ...


def check_classes(source: Source, splits: Mapping[str, np.ndarray], settings: DataSettings) -> None:
    """Raises UserError for a split that lacks a class."""
    for name, indices in splits.items():
        counts = np.bincount(source.labels[indices], minlength=len(source.class_names))
        missing = [source.class_names[label] for label in np.flatnonzero(counts == 0)]
        if missing:
            raise UserError(
                f"data '{settings.path or settings.kind}'",
                f"no image of {len(missing)} of {len(counts)} classes in {name}: {first_of(missing)}",
                next_step="add images of each class",
            )


def first_of(names: Sequence[str], most: int = 5) -> str:
    """The names for a message, only the first ones of many."""
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def split_by_shares(
    indices: np.ndarray, labels: np.ndarray, share: float, settings: DataSettings, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """(kept, held out), both sorted, stratified by class and fixed by `settings.seed`.

    Raises UserError when a class has too few images to be in both.
    """
    count = round(share * len(indices))
    try:
        kept, held = train_test_split(indices, test_size=count, stratify=labels[indices], random_state=settings.seed)
    except ValueError as error:
        smallest = int(np.bincount(labels[indices]).min(initial=0))
        raise UserError(
            f"data '{settings.path or settings.kind}'",
            f"{len(indices)} images (smallest class: {smallest}): too few to hold out {share:.0%} for {name}",
            next_step=f"add images or give a {name} folder",
        ) from error
    return np.sort(kept), np.sort(held)


def complete_splits(splits: dict[str, np.ndarray], labels: np.ndarray, settings: DataSettings) -> dict[str, np.ndarray]:
    """Give every missing one of validation and test its share of the training images."""
    total = len(splits["train"])
    for name, share in (("test", settings.test_share), ("validation", settings.validation_share)):
        if name not in splits:
            left = share * total / len(splits["train"])
            splits["train"], splits[name] = split_by_shares(splits["train"], labels, left, settings, name)
    return splits
