"""Memory of images to adapt to: recent, diverse, and balanced over the classes that the network predicts."""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
SMALLEST = 1e-12


class _Kept(NamedTuple):
    """x_CHW: the image; number: its position in the sequence of images."""

    x_CHW: Array
    number: int


class BalancedMemory:
    """The newest images of each predicted class, so that a sequence of one class does not dominate.

    A full memory drops the oldest image of its largest class; images that are too old leave. Balance by predictions: NOTE (Gong
    et al., NeurIPS 2022, §3.2); by age: RoTTA (Yuan et al., CVPR 2023, §3.2).
    """

    def __init__(self, capacity: int, oldest: int, redundancy: float) -> None:
        """capacity, oldest: [images]. redundancy: ‖x − y‖² / ‖y‖² from a known image of the class below which x is left out."""
        self._capacity, self._oldest, self._redundancy = capacity, oldest, redundancy
        self.clear()

    def clear(self) -> None:
        """Forget all images."""
        self._classes: dict[int, deque[_Kept]] = {}
        self._number = 0

    def __len__(self) -> int:
        return sum(map(len, self._classes.values()))

    def add(self, x_CHW: Array, predicted: int) -> bool:
        """Add an image, and return whether it was new and kept."""
        self._number += 1
        self._age()
        own = self._classes.setdefault(predicted, deque())
        if own and self._is_known(x_CHW, own):
            return False
        if len(self) >= self._capacity:
            largest = max(self._classes.values(), key=lambda kept: (len(kept), kept is own))
            largest.popleft()
        own.append(_Kept(x_CHW, self._number))
        return True

    def _is_known(self, x_CHW: Array, kept: deque[_Kept]) -> bool:
        y_BCHW = np.stack([each.x_CHW for each in kept])
        size_B = np.maximum(np.square(y_BCHW).sum((1, 2, 3)), SMALLEST)
        return bool((np.square(x_CHW - y_BCHW).sum((1, 2, 3)) / size_B < self._redundancy).any())

    def _age(self) -> None:
        for kept in self._classes.values():
            while kept and kept[0].number <= self._number - self._oldest:
                kept.popleft()

    def batch(self) -> Array:
        """All images (B, C, H, W)."""
        return np.stack([each.x_CHW for kept in self._classes.values() for each in kept])
