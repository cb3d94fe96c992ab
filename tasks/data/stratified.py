"""Stratified splits as scikit-learn's `train_test_split` draws them; importing it takes more than a second in each rank."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_Integers = NDArray[np.int64]
FEWEST = 12
"""Splits have about the same share of each class that so many images have as their rarest one."""


class TooFewError(Exception):
    """A class has too few members to be in both parts."""


def stratified(labels: _Integers, held: int, seed: int) -> tuple[_Integers, _Integers]:
    """Sorted places of what is kept and of `held` others, with about the same share of each class.

    labels: (N,) the class of each. The draws are those of scikit-learn from the same seed. TooFewError where that refuses.
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
    """`total` shared out in proportion to `sizes`: rounded down; what is left goes by the largest remainders, ties by lot."""
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
    """(images,): the class by which splits of images of several classes are made even; 0 for an image of none.

    occurring: the classes of each image, one as often as it counts. It is the rarest of an image, unless fewer than `FEWEST`
    images come to that.
    """
    everywhere = np.bincount(np.concatenate(occurring), minlength=classes)
    labels = np.array([min(own, key=lambda label: everywhere[label], default=0) for own in occurring], dtype=np.int64)
    counts = np.bincount(labels, minlength=classes)
    return np.where(counts[labels] < FEWEST, counts.argmax(), labels).astype(np.int64)
