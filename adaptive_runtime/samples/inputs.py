"""Inputs of samples on the device, in numpy: numbers, texts, spectrograms of signals, and several inputs in one.

Samples with several inputs are one structured array: `len`, slices and masks apply to samples. Numeric inputs are, for
example, sensor values or columns of a table. Texts become the numbers of their words in a vocabulary file. Signals over
time, such as sound and motion, become images: log-mel spectrograms, with time from left to right, and the lowest
frequency in the first row. Source of the mel scale: O'Shaughnessy, Speech Communication (1987); of mel filters: Davis
and Mermelstein, IEEE ASSP 28 (1980).

Legend: N samples, signals or texts, C channels, T samples of a signal or words, W samples of a window, F frequencies of
a window, S bands, and columns, L another number of words.
"""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from adaptive_runtime.base.arrays import Array, Integers
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage
from adaptive_runtime.samples.pictures import PictureSteps
from profiling_agents.messages import Message

Size = Annotated[int, Field(ge=1)]


class NumbersPreparation(Message):
    """Preparation of a sample's numbers: subtract `mean` and divide by `deviation`, for each entry of `names`.

    names: of the first axis, such as columns of a table, or axes of a sensor. shape: of one sample.
    """

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    shape: Annotated[tuple[Size, ...], Field(min_length=1, max_length=2)]
    mean: tuple[float, ...]
    deviation: tuple[Annotated[float, Field(gt=0)], ...]

    @property
    def line(self) -> str:
        """Names and scales, for messages."""
        rows = zip(self.names, self.mean, self.deviation, strict=True)
        return ", ".join(f"{name} {mean:.6g} ± {deviation:.6g}" for name, mean, deviation in rows)

    @model_validator(mode="after")
    def _is_of_one_axis(self) -> Self:
        sizes = {len(self.names), len(self.mean), len(self.deviation), self.shape[0]}
        if len(sizes) != 1:
            raise ValueError(f"names, mean, deviation and the first size of shape are of {sorted(sizes)} entries")
        return self


class GivenPreparation(Message):
    """Samples that a network takes as their owner gives them, and how an application makes them: `pictures`, or words.

    shape: of one sample. size: its shape as the SubNet takes it: images (channels, height, width) or (height, width, channels)
    are scaled by `size_interpolation`, of numbers (T,) in int64 it takes the first ones. layout: the owner's. pictures: the
    steps from a picture to a sample; None: others, which `described` has in the owner's words.
    """

    layout: Literal["given"] = "given"
    shape: tuple[Size, ...]
    size: tuple[Size, ...]
    dtype: Literal["float32", "int64"] = "float32"
    words: int | None = None
    """Exclusive upper bound of int64 numbers that are looked up."""
    size_interpolation: str = "bilinear, antialiased"
    described: str = ""
    pictures: PictureSteps | None = None

    @property
    def line(self) -> str:
        """Type and shape, for messages."""
        return f"{self.dtype} {'x'.join(map(str, self.shape)) or 'scalars'}"

    @property
    def has_channels_last(self) -> bool:
        """Whether height and width, which are scaled, are the first axes."""
        return len(self.shape) == 3 and self.shape[:1] != self.size[:1] and self.shape[2:] == self.size[2:]

    @model_validator(mode="after")
    def _is_scaled_alone(self) -> Self:
        is_of_channels = self.shape[:-2] == self.size[:-2] or self.has_channels_last
        if not is_of_channels or (self.shape != self.size and len(self.shape) not in (1, 3)):
            raise ValueError(f"size: {self.size} of samples {self.shape}")
        return self


def packed(inputs: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Structured array (N,) with a field per input (N, …), in their order; a single input is returned as it is.

    AdaptiveError: they have different N.
    """
    if len(inputs) == 1:
        return next(iter(inputs.values()))
    counts = {name: len(values) if values.ndim else 0 for name, values in inputs.items()}
    if len(set(counts.values())) != 1:
        described = ", ".join(f"{name}: {count}" for name, count in counts.items()) or "none"
        raise AdaptiveError("inputs", f"samples of {described}", allowed="as many of each input")
    found = np.empty(next(iter(counts.values())), [(name, one.dtype, one.shape[1:]) for name, one in inputs.items()])
    for name, values in inputs.items():
        found[name] = values
    return found


def input_forms(x_N: NDArray[Any]) -> list[tuple[str, tuple[int, ...]]]:
    """Type and shape of one sample of each input."""
    if x_N.dtype.names is None:
        return [(x_N.dtype.name, x_N.shape[1:])]
    return [(x_N.dtype[name].base.name, x_N.dtype[name].shape) for name in x_N.dtype.names] if x_N.ndim == 1 else []


def sample_sizes(x_N: NDArray[Any]) -> tuple[int, ...]:
    """The sizes of one sample; several inputs are concatenated."""
    return tuple(size for _, shape in input_forms(x_N) for size in shape)


def unpacked(x_N: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """The inputs (N, …) in order, each a contiguous copy; for samples with one input the array itself."""
    if x_N.dtype.names is None:
        return (x_N,)
    return tuple(x_N[name].copy() for name in x_N.dtype.names)  # a single sample is contiguous, but may be misaligned


FLOOR_DB = 80.0
"""A level this far below a full-scale sine maps to 0; the sine's level maps to 1."""
MEL_HZ, MEL = 700.0, 2595.0


class Spectrogram(Message):
    """Conversion of a signal to an image of `bands` rows and columns for each of its channels, with values in [0, 1].

    samples: of a signal, with values from −`full_scale` to `full_scale`, at `sampling_rate_hz`. A column is the power in a Hann
    window of `window` samples, in bands of equal width on the mel scale from 0 Hz to half the sampling rate, in decibels. Far
    below 700 Hz the mel scale is linear in frequency. The signal is reflected at its ends for windows beyond them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ignored_types=(cached_property,))

    sampling_rate_hz: Annotated[float, Field(gt=0.0, le=192_000)]
    channels: Annotated[int, Field(ge=1, le=3)] = 1
    samples: Annotated[int, Field(ge=16)]
    window: Annotated[int, Field(ge=8)]
    bands: Annotated[int, Field(ge=8, le=1024)]
    full_scale: Annotated[float, Field(gt=0.0)] = 1.0

    @property
    def line(self) -> str:
        """Description in words."""
        channels = "" if self.channels == 1 else f"{self.channels} channels of "
        return (
            f"log-mel spectrogram of {channels}{self.samples} samples at {self.sampling_rate_hz:g} Hz, {self.bands} bands and "
            f"columns, windows of {self.window} samples, full scale {self.full_scale:g} "
            "(adaptive_runtime.samples.inputs.Spectrogram)"
        )

    def of(self, signals_NCT: Array) -> Array:
        """Images (N, C, S, S) of signals (N, C, T); with one channel also of (N, T). AdaptiveError: another shape."""
        if signals_NCT.ndim == 2 and self.channels == 1:
            signals_NCT = signals_NCT[:, None]
        if signals_NCT.ndim != 3 or signals_NCT.shape[1:] != (self.channels, self.samples):
            wanted = f"(N, {self.channels}, {self.samples})"
            raise AdaptiveError("signals", f"of shape {signals_NCT.shape}", allowed=wanted)
        before = self.window // 2
        edges = ((0, 0), (0, 0), (before, self.window - before))
        padded = np.pad(signals_NCT.astype(np.float32, copy=False), edges, mode="reflect")
        windows_NCSW = np.lib.stride_tricks.sliding_window_view(padded, self.window, axis=2)[:, :, self._middles_S]
        spectra_NCSF = np.fft.rfft(windows_NCSW * self._window_W, self._frequencies, axis=3)
        power_NCSF = np.square(spectra_NCSF.real) + np.square(spectra_NCSF.imag)
        levels_NCSS = 10 * np.log10(np.maximum(power_NCSF @ self._filters_FS, 10 ** (-FLOOR_DB / 10)))
        return np.clip(1 + levels_NCSS / FLOOR_DB, 0, 1).transpose(0, 1, 3, 2).astype(np.float32)

    @cached_property
    def _middles_S(self) -> NDArray[np.int64]:
        """The sample in the middle of each column's window."""
        return ((np.arange(self.bands) + 0.5) * self.samples / self.bands).astype(np.int64)

    @cached_property
    def _window_W(self) -> Array:
        """Hann window, scaled so that the powers of a full-scale sine sum to 1 over all frequencies (Parseval)."""
        window_W = np.hanning(self.window + 1)[:-1]
        scale = self.full_scale * np.sqrt(self._frequencies * np.square(window_W).sum())
        return (window_W * 2 / scale).astype(np.float32)

    @cached_property
    def _frequencies(self) -> int:
        """Samples of a transform, enough to give each band its own frequency."""
        narrowest_hz = float(_hz(_mel(self.sampling_rate_hz / 2) / (self.bands + 1)))
        return 1 << math.ceil(math.log2(max(float(self.window), self.sampling_rate_hz / narrowest_hz)))

    @cached_property
    def _filters_FS(self) -> Array:
        """Triangles that sum to 1 at each frequency between the middles of the first and the last band."""
        edges_hz = _hz(np.linspace(0.0, _mel(self.sampling_rate_hz / 2), self.bands + 2))
        frequencies_F1 = np.fft.rfftfreq(self._frequencies, 1 / self.sampling_rate_hz)[:, None]
        low, middle, high = edges_hz[:-2], edges_hz[1:-1], edges_hz[2:]
        rising, falling = (frequencies_F1 - low) / (middle - low), (high - frequencies_F1) / (high - middle)
        return np.clip(np.minimum(rising, falling), 0, None).astype(np.float32)


def fitted(signal_T: Array, samples: int, place: float = 0.5) -> Array:
    """The part (…, samples) of a signal (…, T) from the share `place` of the excess on; shorter signals are zero-padded."""
    spare = signal_T.shape[-1] - samples
    if spare >= 0:
        start = round(place * spare)
        return signal_T[..., start : start + samples]
    before = round(place * -spare)
    return np.pad(signal_T, [(0, 0)] * (signal_T.ndim - 1) + [(before, -spare - before)])


def _mel(hz: float) -> float:
    return float(MEL * np.log10(1 + hz / MEL_HZ))


def _hz(mel: NDArray[np.float64] | float) -> NDArray[np.float64]:
    return np.asarray(MEL_HZ * (10 ** (np.asarray(mel) / MEL) - 1))


VOCABULARY_FILE = "vocabulary.json"
PADDING, UNKNOWN = 0, 1
"""Numbers of padding, and of words outside of the vocabulary."""
FIRST_WORD = 2
LONGEST_TEXT, MOST_WORDS, LONGEST_WORD, MOST_BYTES = 65_536, 1_000_000, 256, 32 << 20
"""Upper limits: words of a network's input, words of a vocabulary, characters of a word, bytes of a vocabulary's file."""
_WORD = re.compile(r"\w+|[^\w\s]")

Tokens = Integers


def words_of(text: str) -> list[str]:
    """Case-folded words and single punctuation marks of a text, after Unicode normalisation (NFKC)."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def of_length(x_NT: Tokens, length: int) -> Tokens:
    """Texts (N, L): the first `length` words of each text, padded with `PADDING`."""
    missing = length - x_NT.shape[1]
    if missing > 0:
        return np.pad(x_NT, ((0, 0), (0, missing)), constant_values=PADDING)
    return np.ascontiguousarray(x_NT[:, :length])


class Vocabulary(FileMessage):
    """The words that a network knows, in the order of their numbers, from `FIRST_WORD` on."""

    model_config = ConfigDict(extra="forbid", frozen=True, ignored_types=(cached_property,))
    WHERE: ClassVar[str] = VOCABULARY_FILE
    NEXT_STEP: ClassVar[str] = "export the bundle again"
    READ_VERSION: ClassVar[int | None] = 1
    CONTENT: ClassVar[str] = "a vocabulary"

    version: int = 1
    words: Annotated[
        tuple[Annotated[str, Field(max_length=LONGEST_WORD)], ...], Field(min_length=1, max_length=MOST_WORDS)
    ]

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Read a file of at most `MOST_BYTES`. AdaptiveError in one line."""
        try:
            found = file.stat().st_size
        except OSError as error:
            raise AdaptiveError(str(file), f"cannot be read ({error.strerror})", next_step=cls.NEXT_STEP) from error
        if found > MOST_BYTES:
            raise AdaptiveError(
                str(file),
                f"has {found} bytes",
                allowed=f"at most {MOST_BYTES}",
                next_step="lower data.vocabulary.most_words",
            )
        return super().from_file(file)

    @model_validator(mode="after")
    def _is_one_to_one(self) -> Self:
        if len(set(self.words)) < len(self.words):
            raise ValueError("words: one is there twice")
        return self

    @property
    def size(self) -> int:
        """Exclusive upper bound of the numbers of words."""
        return FIRST_WORD + len(self.words)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """Number of each word."""
        return {word: number for number, word in enumerate(self.words, FIRST_WORD)}

    def tokens(self, texts: Sequence[str], length: int) -> Tokens:
        """Tokens (N, `length`) int64: the numbers of the first words of each text, padded with `PADDING`.

        AdaptiveError: a single text, whose letters would count as texts.
        """
        if isinstance(texts, str):
            raise AdaptiveError("texts", "one text", allowed="a list of texts")
        found_NT = np.full((len(texts), length), PADDING, np.int64)
        for row_T, text in zip(found_NT, texts, strict=True):
            numbers = [self.numbers.get(word, UNKNOWN) for word in words_of(text)[:length]]
            row_T[: len(numbers)] = numbers
        return found_NT


class TextPreparation(Message):
    """Preparation of a text for the first segment: `Vocabulary.tokens` to `length` words.

    vocabulary: the name of its file, in the manifest's folder. words: exclusive upper bound of the numbers of words. size:
    number of words (T,) that the SubNet takes, the first ones of `length`. layout: samples, words.
    """

    layout: Literal["NT"] = "NT"
    vocabulary: str = VOCABULARY_FILE
    words: Annotated[int, Field(gt=FIRST_WORD, le=FIRST_WORD + MOST_WORDS)]
    length: Annotated[int, Field(ge=1, le=LONGEST_TEXT)]
    size: tuple[Annotated[int, Field(ge=1, le=LONGEST_TEXT)]]

    @property
    def line(self) -> str:
        """Description in words."""
        return f"{self.length} words, of a vocabulary of {self.words}"

    @model_validator(mode="after")
    def _is_cut(self) -> Self:
        if self.size[0] > self.length:
            raise ValueError(f"size: {self.size[0]} words of texts of {self.length}")
        return self
