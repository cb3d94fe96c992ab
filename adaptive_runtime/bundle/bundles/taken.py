"""The samples that a bundle takes: images, texts as numbers of words, or several inputs.

Legend: N samples, C channels, H height, W width, T words.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import InputsPreparation, SamplePreparation
from adaptive_runtime.samples.several import packed
from adaptive_runtime.samples.texts import TextPreparation


class TakenSamples(NamedTuple):
    """shape: of one sample: an image (C, H, W) float32, or a text (T,) int64; () for several inputs.

    words: upper bound (exclusive) of numbers of words; None: samples are no texts. inputs: each of several inputs by name; a
    batch is one array with a field for each (`adaptive_runtime.samples.several.packed`); None: one input.
    """

    shape: tuple[int, ...]
    words: int | None = None
    inputs: Mapping[str, "TakenSamples"] | None = None

    @classmethod
    def of(cls, preparation: SamplePreparation, input_shape: tuple[int, ...]) -> "TakenSamples":
        """The samples for a preparation and a SubNet's input shape."""
        if isinstance(preparation, TextPreparation):
            return cls((preparation.length,), preparation.words)
        if isinstance(preparation, InputsPreparation):
            words = {name: one.words for name, one in preparation.inputs.items() if isinstance(one, TextPreparation)}
            return cls((), inputs={name: cls(shape, words.get(name)) for name, shape in preparation.shapes.items()})
        return cls((input_shape[1], preparation.resolution, preparation.resolution))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers of a sample, or of a sample with several inputs."""
        if self.inputs is not None:
            return np.dtype([(name, one.dtype, one.shape) for name, one in self.inputs.items()])
        return np.dtype(np.float32 if self.words is None else np.int64)

    def packed(self, given: NDArray[Any] | Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Samples as one array, also if given by the names of their inputs. AdaptiveError for other inputs or shapes."""
        if not isinstance(given, Mapping):
            return given
        if set(given) != set(self.inputs or ()):
            allowed = ", ".join(self.inputs) if self.inputs else "one array"
            raise AdaptiveError("inputs", ", ".join(given) or "none", allowed=allowed)
        for name, one in (self.inputs or {}).items():
            one.check(given[name], f"input '{name}'")
        return packed({name: given[name] for name in self.inputs or ()})

    def check(self, x: NDArray[Any], where: str = "input") -> None:
        """Raise AdaptiveError for samples of another kind, or for none."""
        if x.dtype != self.dtype or x.shape[1:] != self.shape or not len(x):
            if self.inputs is not None:
                told = ", ".join(f"{name} {('N', *one.shape)}" for name, one in self.inputs.items()).replace("'", "")
                raise AdaptiveError(where, f"{x.dtype} {x.shape}", allowed=f"an array by name for each of {told}")
            got, sizes = f"{x.dtype} {x.shape}", ", ".join(map(str, ("N", *self.shape)))
            raise AdaptiveError(where, got, allowed=f"{self.dtype} ({sizes}), N from 1 on")
        for name, one in (self.inputs or {}).items():
            if one.words is not None:
                one.check(x[name], f"input '{name}'")
        if fault := self.fault(x):
            raise AdaptiveError(where, fault, allowed=f"0 to {self.words - 1}" if self.words else "")

    def fault(self, x: NDArray[Any]) -> str | None:
        """For a text, a line about numbers that are no words of the vocabulary; None if all are."""
        if self.words is None or (x.min() >= 0 and x.max() < self.words):
            return None
        return f"numbers of words from {x.min()} to {x.max()}"
