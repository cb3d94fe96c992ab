"""Log-mel spectrograms: signals as images, with time from left to right, and the lowest frequency in the first row.

Source of the mel scale: O'Shaughnessy, Speech Communication (1987); of mel filters: Davis and Mermelstein, IEEE ASSP 28 (1980).
Legend: N signals, C channels, T samples, W samples of a window, F frequencies of a window, S bands, and columns.
"""

import math
from functools import cached_property
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from adaptive_runtime.base.errors import AdaptiveError
from profiling_agents.messages import Message

Array = NDArray[np.float32]
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
            "(adaptive_runtime.samples.signals.Spectrogram)"
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
