"""All segments at home: in onnxruntime or ncnn, timed whenever they run."""

import math
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.chains import require_runtime, session_options
from adaptive_runtime.errors import AdaptiveError
from adaptive_runtime.links.measures import WeightedMean
from adaptive_runtime.split.segments import SplitSubNet
from profiling_agents.backends.base import Model, ModelError, RuntimeOptions
from profiling_agents.messages import JobMessage

Array = NDArray[np.float32]
FIRST_RUNS = 5
FADING = 0.98


Loaded = Callable[[Sequence[Array]], Sequence[Array]]
"""A segment: outputs from inputs, in the order of its names."""


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
    """All segments, loaded in the runtime of home's files. One thread runs them."""

    def __init__(self, split: SplitSubNet) -> None:
        require_runtime(split.home, "home")
        self.subnet = split.subnet
        self._models = (_sessions if split.home == "onnx" else _nets)(split)
        self._times = [WeightedMean() for _ in self._models]
        self.warm_up()

    def warm_up(self) -> None:
        """The first runs, from which times are predicted."""
        zeros = {self.subnet.input: np.zeros(self.subnet.shapes[self.subnet.input], np.float32)}
        last = len(self._models) - 1
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
                found = self._models[number]([known[name] for name in segment.input_names])
            except Exception as error:
                raise AdaptiveError(f"segment {number}", f"its runtime fails ({error})") from error
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


def _sessions(split: SplitSubNet) -> list[Loaded]:
    """One session of onnxruntime for each segment."""
    import onnxruntime

    options = session_options(split.settings)
    options.log_severity_level = 3

    def loaded(segment: JobMessage) -> Loaded:
        content, providers = split.files[segment.files[0]], ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(content, options, providers=providers)
        return lambda inputs: session.run(segment.output_names, dict(zip(segment.input_names, inputs, strict=True)))

    return [loaded(one) for one in split.subnet.segments]


def _nets(split: SplitSubNet) -> list[Loaded]:
    """One net of ncnn for each segment, in fp32, as an agent with that backend runs it. AdaptiveError: ncnn refuses one."""
    from profiling_agents.backends.ncnn import NcnnBackend

    threads = int(split.settings.get("intra_op_num_threads", 1))
    backend = NcnnBackend(RuntimeOptions(backend="ncnn", threads=max(threads, 1)))
    found: list[Loaded] = []
    with tempfile.TemporaryDirectory(prefix="autotailor-home-") as name:
        for number, segment in enumerate(split.subnets["ncnn"].segments):
            files = [Path(name) / digest for digest in segment.files]
            for file in files:
                file.write_bytes(split.files[file.name])
            try:
                model = backend.load(files, segment)
            except ModelError as error:
                raise AdaptiveError(f"segment {number}", f"ncnn refuses it ({error})") from error
            found.append(_NetRun(model))
    return found


class _NetRun:
    """A net that is freed before its memory pools: the other order crashes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        weakref.finalize(self, model.close)

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._model.run(inputs)
