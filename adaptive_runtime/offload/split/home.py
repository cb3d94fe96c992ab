"""All segments on the coordinator, in onnxruntime or ncnn; every run is timed."""

import math
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import free_net, require_runtime, session_options
from adaptive_runtime.exits import Decider, SampleDecision
from adaptive_runtime.offload.links.measures import WeightedMean
from adaptive_runtime.offload.split.segments import SplitSubNet
from profiling_agents.messages import JobMessage

Array = NDArray[np.float32]
FIRST_RUNS = 5
FADING = 0.98
NOT_FP32 = ("use_vulkan_compute", "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")
"""Options of ncnn that are switched off."""


Loaded = Callable[[Sequence[Array]], Sequence[Array]]
"""Runs a segment: outputs from inputs, in the order of its names."""


class HomeRun(NamedTuple):
    """Outputs of segments by name, and the duration of each segment [ms]. left: answer of the exit at which the sample left."""

    values: dict[str, Array]
    took_ms: tuple[float, ...]
    left: Array | None = None


class Lateness:
    """Recent lateness of the coordinator's own clock and threads [s]: the largest value, which fades."""

    __slots__ = ("_largest",)

    def __init__(self) -> None:
        self._largest = 0.0

    def add(self, late_s: float) -> None:
        """Add one observation."""
        self._largest = max(late_s, FADING * self._largest)

    @property
    def largest_s(self) -> float:
        """The spare time that compensates it."""
        return self._largest


class HomeSegments:
    """All segments, loaded in the runtime of the coordinator's files. A single thread runs them."""

    def __init__(self, split: SplitSubNet) -> None:
        require_runtime(split.home, "home")
        self.subnet = split.subnet
        self._exits = tuple(one.name for one in split.exits)
        self._decider = None if split.thresholds is None else Decider(split.thresholds)
        self._models = self.loaded(split)
        self._times = [WeightedMean() for _ in self._models]
        self.warm_up()

    def loaded(self, split: SplitSubNet) -> list[Loaded]:
        """Each segment as a function that runs it."""
        return (_sessions if split.home == "onnx" else _nets)(split, _jobs(split))

    def warm_up(self) -> None:
        """Run for the first times, to get times for predictions."""
        zeros = {self.subnet.input: np.zeros(self.subnet.shapes[self.subnet.input], np.float32)}
        last = len(self._models) - 1
        self.run(zeros, 0, last)
        for _ in range(FIRST_RUNS):
            self.learn(0, self.run(zeros, 0, last).took_ms)

    def decision(self) -> SampleDecision | None:
        """The early-exit decision of a new request; None: samples do not leave early."""
        return None if self._decider is None else self._decider.sample()

    def run(
        self, values: Mapping[str, Array], first: int, last: int, decision: SampleDecision | None = None
    ) -> HomeRun:
        """Run segments first … last, or up to the exit at which the sample leaves. AdaptiveError: a segment fails.

        decision: of a sample whose earlier exits were all on the coordinator; it continues while that holds.
        """
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
            given |= zip(segment.output_names, found, strict=False)  # the answer of an exit follows the named outputs
            known |= given
            if number < len(self._exits) and decision is not None and decision.exit == number - 1:
                logits = given.get(self._exits[number], found[-1])
                if decision.leaves(logits):
                    return HomeRun(given, tuple(took_ms), logits)
        return HomeRun(given, tuple(took_ms))

    def learn(self, first: int, took_ms: tuple[float, ...]) -> None:
        """Learn from the durations of segments, from `first` on."""
        for mean, one in zip(self._times[first:], took_ms, strict=False):
            mean.add(one)

    @property
    def times_ms(self) -> tuple[float, ...]:
        """Mean duration of each segment."""
        return tuple(one.mean for one in self._times)

    def predicted_ms(self, first: int, last: int, deviations: float) -> float:
        """Predicted duration of segments first … last: the mean plus so many standard deviations; 0 without segments."""
        times = self._times[first : last + 1]
        return sum(one.mean for one in times) + deviations * math.sqrt(sum(one.variance for one in times))


def _jobs(split: SplitSubNet) -> list[JobMessage]:
    """The segments in the coordinator's form: with the answer of each exit after the values that later segments read."""
    found = list(split.subnets[split.home].segments)
    for number, exit in enumerate(split.exits):
        one = found[number]
        if exit.name not in one.output_names:
            assert one.output_shapes is not None, "checked"
            names, shapes = (*one.output_names, exit.name), (*one.output_shapes, exit.shape)
            found[number] = one.model_copy(update={"output_names": names, "output_shapes": shapes})
    return found


def _sessions(split: SplitSubNet, jobs: Sequence[JobMessage]) -> list[Loaded]:
    """One onnxruntime session per segment."""
    import onnxruntime

    options = session_options(split.settings)
    options.log_severity_level = 3

    def loaded(segment: JobMessage) -> Loaded:
        content, providers = split.files[segment.files[0]], ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(content, options, providers=providers)
        return lambda inputs: session.run(segment.output_names, dict(zip(segment.input_names, inputs, strict=True)))

    return [loaded(one) for one in jobs]


def _nets(split: SplitSubNet, jobs: Sequence[JobMessage]) -> list[Loaded]:
    """One ncnn net per segment. AdaptiveError: ncnn refuses a segment."""
    threads = max(1, int(split.settings.get("intra_op_num_threads", 1)))
    found: list[Loaded] = []
    with tempfile.TemporaryDirectory(prefix="autotailor-home-") as name:
        for number, segment in enumerate(jobs):
            files = [Path(name) / digest for digest in segment.files]
            for file in files:
                file.write_bytes(split.files[file.name])
            found.append(_NetRun(number, segment, files, threads))
    return found


class _NetRun:
    """A segment in ncnn, in fp32. Its blobs have the names of its values."""

    def __init__(self, number: int, segment: JobMessage, files: Sequence[Path], threads: int) -> None:
        import ncnn

        self._segment, self._matrix_of = segment, ncnn.Mat
        self._net = ncnn.Net()
        pools = {"blob_allocator": ncnn.UnlockedPoolAllocator(), "workspace_allocator": ncnn.PoolAllocator()}
        for name, value in {"num_threads": threads, **dict.fromkeys(NOT_FP32, False), **pools}.items():
            setattr(self._net.opt, name, value)
        param, weights = map(str, files)
        if self._net.load_param(param) or self._net.load_model(weights):
            raise AdaptiveError(f"segment {number}", "ncnn refuses it", next_step="use the ncnn that it was made for")
        weakref.finalize(self, free_net, self._net, tuple(pools.values()))

    def __call__(self, inputs: Sequence[Array]) -> Sequence[Array]:
        segment, extractor = self._segment, self._net.create_extractor()
        for name, array, shape in zip(segment.input_names, inputs, segment.input_shapes, strict=True):
            own = np.ascontiguousarray(array.reshape(shape[1:] if len(shape) > 1 else shape))
            # a Mat over numpy's memory lacks ncnn's alignment and crashes vector code; the clone has it
            extractor.input(name, self._matrix_of(own).clone())
        assert segment.output_shapes is not None, "checked"
        found = []
        for name, shape in zip(segment.output_names, segment.output_shapes, strict=True):
            status, matrix = extractor.extract(name)
            if status:
                raise AdaptiveError(f"output '{name}'", f"ncnn failed with code {status}")
            found.append(np.array(matrix).reshape(shape))
        return found
