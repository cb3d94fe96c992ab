"""The samples that a bundle takes: images, or texts as numbers of words.

Legend: N samples, C channels, H height, W width, T words.
"""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.chains import SamplePreparation
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.texts import TextPreparation


class TakenSamples(NamedTuple):
    """shape: of one sample, an image (C, H, W) float32, or a text (T,) int64.

    words: numbers of words are below it; None: samples are images.
    """

    shape: tuple[int, ...]
    words: int | None = None

    @classmethod
    def of(cls, preparation: SamplePreparation, input_shape: tuple[int, ...]) -> Self:
        """By what is done before a SubNet with an input of this shape sees a sample."""
        if isinstance(preparation, TextPreparation):
            return cls((preparation.length,), preparation.words)
        return cls((input_shape[1], preparation.resolution, preparation.resolution))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the numbers of a sample."""
        return np.dtype(np.float32 if self.words is None else np.int64)

    def check(self, x: NDArray[Any]) -> None:
        """AdaptiveError for other samples, or none."""
        if x.dtype != self.dtype or x.shape[1:] != self.shape or not len(x):
            got, sizes = f"{x.dtype} {x.shape}", ", ".join(map(str, ("N", *self.shape)))
            raise AdaptiveError("input", got, allowed=f"{self.dtype} ({sizes}), N from 1 on")
        if fault := self.fault(x):
            raise AdaptiveError("input", fault, allowed=f"0 to {self.words - 1}" if self.words else "")

    def fault(self, x: NDArray[Any]) -> str | None:
        """Numbers that are no words of the vocabulary; None: there are none."""
        if self.words is None or (x.min() >= 0 and x.max() < self.words):
            return None
        return f"numbers of words from {x.min()} to {x.max()}"
