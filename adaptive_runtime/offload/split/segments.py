"""The segments of a split SubNet, from a chain's folder: timed runs on the coordinator, and files for devices.

The coordinator runs segments in onnxruntime or ncnn; other devices get messages and files.
"""

import math
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from pydantic import ValidationError

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains import (
    SEGMENTS_FILE,
    ChainFormat,
    ChainManifest,
    ChainSegment,
    ChainTensor,
    free_net,
    require_runtime,
    session_options,
)
from adaptive_runtime.exits import Decider, SampleDecision, Thresholds
from adaptive_runtime.offload.links.measures import WeightedMean
from profiling_agents.messages import Digest, Format, JobMessage, RuntimeSettings, ServedSubNet, one_line

WITH_NCNN = "write it with partition.ncnn=true"


@dataclass(frozen=True, slots=True)
class SplitSubNet:
    """A SubNet that may be split. subnets: the same segments by the format of their files, ONNX first.

    files: contents by sha256. settings: of onnxruntime on the coordinator. coordinator: the format of the files that the
    coordinator runs. exits: answers of segments at which samples may leave as long as all earlier segments ran on the
    coordinator, in order. thresholds: of the exits.
    """

    subnets: dict[Format, ServedSubNet]
    files: dict[str, bytes]
    settings: RuntimeSettings
    coordinator: ChainFormat = "onnx"
    exits: tuple[ChainTensor, ...] = ()
    thresholds: Thresholds | None = None

    @property
    def subnet(self) -> ServedSubNet:
        """The segments in ONNX, with the digest that plans refer to. Names and shapes are the same in all formats."""
        return self.subnets["onnx"]

    @classmethod
    def open(
        cls,
        folder: str | Path,
        manifest: str = SEGMENTS_FILE,
        coordinator: ChainFormat = "onnx",
        thresholds: Thresholds | None = None,
    ) -> Self:
        """Open and check the chain of a folder. AdaptiveError: it cannot be split in this form.

        coordinator: `ncnn`: it runs its segments in ncnn. thresholds: of the exits on the coordinator; None: those of the
        file that the manifest names, if it names one. Without thresholds answers of exits before the last one are not computed.
        """
        file = Path(folder) / manifest
        found = ChainManifest.read(file)
        thresholds = thresholds or found.own_thresholds(Path(folder))
        whole, found = found, _until_full(found, thresholds, str(file))
        if found.format != "onnx":
            raise AdaptiveError(str(file), f"its format is {found.format}", allowed="onnx")
        formats: list[ChainFormat] = ["onnx"]
        if all(one.ncnn is not None for one in found.segments):
            formats.append("ncnn")
        if coordinator not in formats:
            raise AdaptiveError(
                str(file), f"has no files of {coordinator}", allowed=", ".join(formats), next_step=WITH_NCNN
            )
        named = {name for one in found.segments for form in formats for name in _names(one, form)}
        behind = {name for one in whole.segments for name in (str(one.file), *(one.ncnn or ()))}
        if shared := sorted(set(found.files) - named - behind):
            raise AdaptiveError(
                str(file),
                f"its segments keep their weights in {shared[0]}",
                allowed="segments with weights of their own",
                next_step="export the chain outside of a bundle",
            )
        contents = {name: (Path(folder) / name).read_bytes() for name in named}
        try:
            subnets: dict[Format, ServedSubNet] = {form: _served(found, contents, form) for form in formats}
        except ValidationError as error:
            raise AdaptiveError(str(file), one_line(error), next_step="export the SubNet again") from error
        files = {found.files[name]: contents[name] for name in named}
        exits = () if thresholds is None else tuple(one.outputs[0] for one in found.segments[:-1])
        return cls(subnets, files, dict(found.settings), coordinator, exits, thresholds)


def _until_full(found: ChainManifest, thresholds: Thresholds | None, where: str) -> ChainManifest:
    """The chain up to the exit that gives the full answer. AdaptiveError: thresholds of another SubNet."""
    if thresholds is None:
        return found
    last = len(found.segments) - 1
    if thresholds.full_exit > last:
        got = f"{thresholds.full_exit} thresholds for {last + 1} exits"
        raise AdaptiveError(where, got, allowed=f"at most {last}", next_step="make them for this SubNet")
    if found.input.shape[0] != 1:
        got = f"batches of {found.input.shape[0]}"
        raise AdaptiveError(where, got, allowed="1, since samples leave one by one", next_step="export it with batch=1")
    return found.model_copy(update={"segments": found.segments[: thresholds.full_exit + 1]})


def _names(segment: ChainSegment, form: ChainFormat) -> tuple[str, ...]:
    """Files of a segment in one format."""
    return (str(segment.file),) if form == "onnx" else segment.ncnn or ()


def _served(found: ChainManifest, contents: dict[str, bytes], form: ChainFormat) -> ServedSubNet:
    read = {tensor.name for segment in found.segments for tensor in segment.inputs}
    answer = found.segments[-1].outputs[0].name
    segments, sizes = [], dict[Digest, int]()
    for number, one in enumerate(found.segments):
        names = _names(one, form)
        digests = tuple(found.files[name] for name in names)
        sizes |= zip(digests, (len(contents[name]) for name in names), strict=True)
        given = [tensor for tensor in one.outputs if tensor.name in read or tensor.name == answer]
        segments.append(_job(number, one, form, digests, given))
    return ServedSubNet(segments=tuple(segments), input=found.input.name, answer=answer, file_bytes=sizes)


def _job(
    number: int, segment: ChainSegment, form: ChainFormat, digests: tuple[Digest, ...], given: list[ChainTensor]
) -> JobMessage:
    fields = {
        "key": f"segment {number}",
        "format": form,
        "files": digests,
        "input_names": tuple(tensor.name for tensor in segment.inputs),
        "input_shapes": tuple(tensor.shape for tensor in segment.inputs),  # a free size (None) is refused
        "output_names": tuple(tensor.name for tensor in given),
        "output_shapes": tuple(tensor.shape for tensor in given),
    }
    return JobMessage.model_validate(fields)


FIRST_RUNS = 5
NOT_FP32 = ("use_vulkan_compute", "use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage")
"""Options of ncnn that are switched off."""


Loaded = Callable[[Sequence[Array]], Sequence[Array]]
"""Runs a segment: outputs from inputs, in the order of its names."""


class CoordinatorRun(NamedTuple):
    """Outputs of segments by name, and the duration of each segment [ms]. left: answer of the exit at which the sample left."""

    values: dict[str, Array]
    took_ms: tuple[float, ...]
    left: Array | None = None


class CoordinatorSegments:
    """All segments, loaded in the runtime of the coordinator's files. A single thread runs them."""

    def __init__(self, split: SplitSubNet) -> None:
        require_runtime(split.coordinator, "coordinator")
        self.subnet = split.subnet
        self._exits = tuple(one.name for one in split.exits)
        self._decider = None if split.thresholds is None else Decider(split.thresholds)
        self._models = self.loaded(split)
        self._times = [WeightedMean() for _ in self._models]
        self.warm_up()

    def loaded(self, split: SplitSubNet) -> list[Loaded]:
        """Each segment as a function that runs it."""
        return (_sessions if split.coordinator == "onnx" else _nets)(split, _jobs(split))

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
    ) -> CoordinatorRun:
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
                    return CoordinatorRun(given, tuple(took_ms), logits)
        return CoordinatorRun(given, tuple(took_ms))

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
    found = list(split.subnets[split.coordinator].segments)
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
    with tempfile.TemporaryDirectory(prefix="autotailor-coordinator-") as name:
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
