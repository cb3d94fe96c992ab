"""Stratified splits as scikit-learn's `train_test_split` draws them; importing it takes more than a second in each rank."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_Integers = NDArray[np.int64]
FEWEST = 12
"""Splits have about the same share of each class that is the rarest one of at least this many images."""


class TooFewError(Exception):
    """A class has too few members to be in both parts."""


def stratified(labels: _Integers, held: int, seed: int) -> tuple[_Integers, _Integers]:
    """Sorted places of the kept and of `held` other samples, with about the same share of each class.

    labels: (N,) class of each sample. The draws equal those of scikit-learn with the same seed. TooFewError if scikit-learn
    would refuse.
    """
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if min(held, len(labels) - held) < max(len(sizes), 1) or sizes.min() < 2:
        raise TooFewError
    rng = np.random.RandomState(seed)
    kept_of = _apportioned(sizes, len(labels) - held, rng)
    held_of = _apportioned(sizes - kept_of, held, rng)
    parts: tuple[list[_Integers], list[_Integers]] = [], []
    for number, (size, first, second) in enumerate(zip(sizes, kept_of, held_of, strict=True)):
        drawn = np.flatnonzero(classes == number)[rng.permutation(size)]
        parts[0].append(drawn[:first])
        parts[1].append(drawn[first : first + second])
    kept, others = (np.sort(np.concatenate(part)) for part in parts)
    return kept, others


def _apportioned(sizes: _Integers, total: int, rng: np.random.RandomState) -> _Integers:
    """`total` distributed in proportion to `sizes`: rounded down; the rest goes to the largest remainders, ties at random."""
    exact = sizes / sizes.sum() * total
    found = np.floor(exact)
    remainders, left = exact - found, int(total - found.sum())
    for remainder in np.unique(remainders)[::-1]:
        if left <= 0:
            break
        tied = np.flatnonzero(remainders == remainder)
        winners = rng.choice(tied, size=min(len(tied), left), replace=False)
        found[winners] += 1
        left -= len(winners)
    return found.astype(np.int64)


def rarest_classes(occurring: Sequence[_Integers], classes: int) -> _Integers:
    """The class (images,) by which splits of images with several classes are balanced; 0 for an image without classes.

    occurring: the classes of each image, repeated by their weight. The class is the image's rarest, unless fewer than `FEWEST`
    images share it.
    """
    everywhere = np.bincount(np.concatenate(occurring), minlength=classes)
    labels = np.array([min(own, key=lambda label: everywhere[label], default=0) for own in occurring], dtype=np.int64)
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts[labels] < FEWEST, counts.argmax(), labels).astype(np.int64)
