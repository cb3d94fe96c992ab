"""All segments at home: in onnxruntime, timed whenever they run."""

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.chains import require_runtime, session_options
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.links.measures import WeightedMean
from adaptive_runtime.split.segments import SplitSubNet

Array = NDArray[np.float32]
FIRST_RUNS = 5
FADING = 0.98


class HomeRun(NamedTuple):
    """What segments gave, by name, and how long each took [ms]."""

    values: dict[str, Array]
    took_ms: tuple[float, ...]


class Lateness:
    """How late home itself has been of late, by its clock and its threads [s]: the largest value, which fades."""

    __slots__ = ("_largest",)

    def __init__(self) -> None:
        self._largest = 0.0

    def add(self, late_s: float) -> None:
        """Once more."""
        self._largest = max(late_s, FADING * self._largest)

    @property
    def largest_s(self) -> float:
        """The spare that it takes."""
        return self._largest


class HomeSegments:
    """Sessions of all segments. One thread runs them."""

    def __init__(self, split: SplitSubNet) -> None:
        require_runtime("onnx", "home")
        import onnxruntime

        self.subnet = split.subnet
        options = session_options(split.settings)
        options.log_severity_level = 3
        self._sessions = [
            onnxruntime.InferenceSession(split.files[one.files[0]], options, providers=["CPUExecutionProvider"])
            for one in split.subnet.segments
        ]
        self._times = [WeightedMean() for _ in self._sessions]
        self.warm_up()

    def warm_up(self) -> None:
        """The first runs, from which times are predicted."""
        zeros = {self.subnet.input: np.zeros(self.subnet.shapes[self.subnet.input], np.float32)}
        last = len(self._sessions) - 1
        self.run(zeros, 0, last)
        for _ in range(FIRST_RUNS):
            self.learn(0, self.run(zeros, 0, last).took_ms)

    def run(self, values: Mapping[str, Array], first: int, last: int) -> HomeRun:
        """Segments first … last. AdaptiveError: one of them fails."""
        known, took_ms = dict(values), []
        given: dict[str, Array] = {}
        for number in range(first, last + 1):
            segment = self.subnet.segments[number]
            start_s = time.perf_counter()
            try:
                found = self._sessions[number].run(
                    segment.output_names, {name: known[name] for name in segment.input_names}
                )
            except Exception as error:
                raise AdaptiveError(f"segment {number}", f"onnxruntime fails ({error})") from error
            took_ms.append((time.perf_counter() - start_s) * 1e3)
            given |= zip(segment.output_names, found, strict=True)
            known |= given
        return HomeRun(given, tuple(took_ms))

    def learn(self, first: int, took_ms: tuple[float, ...]) -> None:
        """Times of segments from the first on."""
        for mean, one in zip(self._times[first:], took_ms, strict=False):
            mean.add(one)

    @property
    def times_ms(self) -> tuple[float, ...]:
        """Of each segment the mean."""
        return tuple(one.mean for one in self._times)

    def predicted_ms(self, first: int, last: int, deviations: float) -> float:
        """Of segments first … last: the mean and so many standard deviations; 0 for none."""
        times = self._times[first : last + 1]
        return sum(one.mean for one in times) + deviations * math.sqrt(sum(one.variance for one in times))
