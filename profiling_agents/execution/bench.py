"""The work of the child process inside its sandbox: loading and timing foreign models, and serving segments.

Frames arrive on stdin and leave on a private copy of stdout. Output of the runtime goes to stderr, a log file that the
service keeps. The working folder holds the models, named by digest. Segments stay loaded and run one behind the other;
their frames are the same, with tensors in the coding of the stream as payloads.

Timing has a warm-up by time and count, inner repeats until a sample is long enough to be timed, blocks spread over
time, p50/p90 over samples, and stops when p50 is known well enough. After TVM's min_repeat_ms, TFLite benchmark_model,
MLPerf Mobile. A sample is interrupted when the system gives the core to another process meanwhile. With one thread, an
interrupted sample counts as the time for which the model had the core. With several threads, an interrupted sample is
left out while enough other samples remain. A sample on a core that other processes slow down
(`profiling_agents.sensing.machine`) is left out, too.
"""

import gc
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from profiling_agents import frames, messages
from profiling_agents.backends import open_backend
from profiling_agents.backends.base import Backend, Model, ModelError, ModelMemoryError
from profiling_agents.execution.settings import ModelLimits, WorkerSettings, allow_cpu, allow_memory
from profiling_agents.sandbox.entering import SandboxReport
from profiling_agents.sensing.energy import find_meter
from profiling_agents.sensing.machine import CacheFlush, Pace, Repeat, Runs, pin
from profiling_agents.sensing.sensors import cores_root, frequency_mhz, throttle_events
from profiling_agents.streams import FloatArray, decoded_all, encoded

RULES_VERSION = 3
"""Part of a device's fingerprint; raise it when a change here moves the numbers."""

REMEASURE_PAUSE_S = 0.01
NORMAL_QUANTILE_95 = 1.96


def measure(
    repeat: Repeat,
    settings: messages.MeasureSettings,
    *,
    one_thread: bool = False,
    prepare: Callable[[], None] | None = None,
    pace: Pace | None = None,
) -> messages.Timing:
    """Time `repeat(n)`, which runs the model n times; measure a second time when the spread is above the limit.

    one_thread: the calling thread alone computes, so its CPU time is the CPU time of the model. prepare: called before each
    sample, which is then a single run. pace: speed of the core; None for models that run on several cores.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        repeats = _warm_up(repeat, settings)
        if prepare is not None:
            repeats = 1
        timing = _sample(repeat, repeats, settings, _Samples(one_thread, prepare, pace)).summary(repeats, settings)
        if timing.noisy:
            time.sleep(REMEASURE_PAUSE_S)
            repeat(repeats)
            again = _sample(repeat, repeats, settings, _Samples(one_thread, prepare, pace)).summary(repeats, settings)
            timing = min(timing, again, key=lambda one: (one.noisy, one.spread))
        return timing
    finally:
        if collecting:
            gc.enable()


def _timed(repeat: Repeat, runs: int) -> float:
    """Duration of `runs` runs [s]."""
    start = time.perf_counter_ns()
    own_s = repeat(runs)
    host_s = (time.perf_counter_ns() - start) * 1e-9
    return host_s if own_s is None else own_s


def _warm_up(repeat: Repeat, settings: messages.MeasureSettings) -> int:
    """Run until time and count are reached; return how many runs make one sample of `sample_us`."""
    target_s = settings.sample_us * 1e-6
    until = time.perf_counter() + settings.warmup_ms * 1e-3
    runs, fastest_s, repeats = 0, math.inf, 1
    while runs < settings.warmup_runs or time.perf_counter() < until:
        duration_s = _timed(repeat, repeats)
        fastest_s = min(fastest_s, duration_s / repeats)
        runs += repeats
        if duration_s < target_s:
            repeats = max(2 * repeats, math.ceil(target_s / max(fastest_s, 1e-9)))
    return max(1, math.ceil(target_s / max(fastest_s, 1e-9)))


@dataclass(slots=True)
class _Samples:
    """Durations [s per run]: calm samples, and separately samples that were interrupted or slowed down."""

    one_thread: bool
    prepare: Callable[[], None] | None
    pace: Pace | None
    calm: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)

    def add(self, repeat: Repeat, repeats: int, wait_until_s: float) -> None:
        if self.pace is not None and self.pace.wait(wait_until_s):
            repeat(1)  # other processes ran meanwhile and changed the caches
        if self.prepare is not None:
            self.prepare()
        before, cpu_s = _interruptions(), time.thread_time()
        duration_s = _timed(repeat, repeats)
        cpu_s = time.thread_time() - cpu_s
        calm = _interruptions() == before
        if not calm and self.one_thread:
            calm, duration_s = True, min(duration_s, cpu_s)
        calm = (self.pace is None or self.pace.calm()) and calm
        (self.calm if calm else self.disturbed).append(duration_s / repeats)

    def summary(self, repeats: int, settings: messages.MeasureSettings) -> messages.Timing:
        """The timing of the calm samples; if there are too few, the timing of all samples, flagged noisy."""
        enough = len(self.calm) >= settings.min_samples
        counted = np.array(self.calm if enough else self.calm + self.disturbed)
        p10, p50, p90 = (float(value) for value in np.quantile(counted, (0.1, 0.5, 0.9)) * 1e3)
        spread = (p90 - p10) / p50
        noisy = not enough or spread > settings.spread_limit
        return messages.Timing(p50_ms=p50, p90_ms=p90, spread=spread, n=len(counted), repeats=repeats, noisy=noisy)


def _interruptions() -> int:
    """How often the system has taken a core from this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _sample(repeat: Repeat, repeats: int, settings: messages.MeasureSettings, samples: _Samples) -> _Samples:
    """Fill `samples` in blocks with pauses, until p50 is known well enough or the time is up."""
    calm, disturbed = samples.calm, samples.disturbed
    until = time.perf_counter() + settings.time_cap_ms * 1e-3
    patience = 0.0 if samples.pace is None else settings.patience
    end = until + patience * settings.time_cap_ms * 1e-3
    block = 0
    while True:
        for _ in range(settings.samples_per_block):
            samples.add(repeat, repeats, end)
            now, most = time.perf_counter(), len(calm) + len(disturbed)
            if now >= until and (len(calm) >= settings.min_samples or (now >= end and most >= settings.min_samples)):
                return samples
        block += 1
        enough = block >= settings.min_blocks and len(calm) >= settings.min_samples
        if enough and relative_half_width(np.array(calm)) <= settings.confidence:
            return samples
        time.sleep(settings.block_pause_ms * 1e-3)


def relative_half_width(samples: np.ndarray) -> float:
    """Half the 95 % confidence interval of the median (by order statistics), relative to the median."""
    ordered = np.sort(samples)
    count = len(ordered)
    reach = NORMAL_QUANTILE_95 * math.sqrt(count) / 2
    low = max(0, math.floor((count - 1) / 2 - reach))
    high = min(count - 1, math.ceil((count - 1) / 2 + reach))
    return float((ordered[high] - ordered[low]) / 2 / np.median(ordered))


FREQUENCY_DROP = 0.05
"""A frequency that falls by more than this share during a measurement makes it noisy (throttling)."""

WAITING_SHARE = 0.25
"""Share of the wall-clock limit for waiting until the core is calm."""


Request = TypeVar("Request", bound=messages.Message)


def serve(argument: str, report: SandboxReport) -> int:
    """Open the runtime, then load, run and free one model after the other. report: the sandbox of this process."""
    settings = WorkerSettings.model_validate_json(argument)
    pace = Pace() if len(settings.cores) == 1 else None

    def answer(backend: Backend, request: messages.ChildRequest, payload: bytes) -> tuple[messages.ChildReply, bytes]:
        return _answer(backend, settings, pace, request, payload)

    return serve_requests(settings, report, messages.ChildRequest, answer)


def serve_requests(
    settings: WorkerSettings,
    report: SandboxReport,
    kind: type[Request],
    answer: Callable[[Backend, Request, bytes], tuple[messages.ChildReply, bytes]],
) -> int:
    """Open the runtime, then answer requests of one kind until stdin closes."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pin(settings.cores)
    try:
        backend = open_backend(settings)
        runtime = backend.describe()
        allow_memory(settings.limits.memory_mib)
        sandbox = messages.Sandbox(standing=tuple(report.standing), missing=tuple(report.missing))
        _send(replies, messages.ChildReply(runtime=runtime, sandbox=sandbox))
    except messages.AgentError as error:
        _send(replies, messages.ChildReply(reason=str(error)))
        return 1
    while (request := _receive(sys.stdin.buffer, settings.max_payload_bytes)) is not None:
        allow_cpu(settings.limits.cpu_s)
        header, payload = request
        reply, content = with_faults(partial(answer, backend, kind.model_validate_json(header), payload))
        _send(replies, reply, content)
    return 0


def _receive(stream: BinaryIO, max_payload_bytes: int) -> tuple[bytes, bytes] | None:
    prefix = stream.read(frames.LENGTHS.size)
    if len(prefix) < frames.LENGTHS.size:
        return None
    header_bytes, payload_bytes = frames.read_lengths(prefix, max_payload_bytes)
    return stream.read(header_bytes), stream.read(payload_bytes)


def _send(stream: BinaryIO, reply: messages.ChildReply, payload: bytes = b"") -> None:
    stream.write(frames.pack(reply.model_dump_json().encode(), payload))
    stream.flush()


def with_faults(answer: Callable[[], tuple[messages.ChildReply, bytes]]) -> tuple[messages.ChildReply, bytes]:
    """The answer; every fault of a model becomes the reason of a failed reply."""
    try:
        return answer()
    except (MemoryError, ModelMemoryError) as error:
        return messages.ChildReply(reason=str(error) or "allocation failed", out_of_memory=True), b""
    except (ModelError, messages.AgentError) as error:
        return messages.ChildReply(reason=str(error)), b""
    except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; the fault is its own
        return messages.ChildReply(reason=f"{type(error).__name__}: {error}"), b""


def load(backend: Backend, job: messages.JobMessage) -> Model:
    """The model of a job. ModelError if its format is unsupported or the runtime refuses it."""
    if job.format not in backend.formats:
        raise ModelError(f"format '{job.format}'; this device takes {', '.join(backend.formats)}")
    job.engine.settled(backend.engine_options)  # refused here, whichever options the backend reads
    return backend.load([Path(digest) for digest in job.files], job)


def _answer(
    backend: Backend, worker: WorkerSettings, pace: Pace | None, request: messages.ChildRequest, payload: bytes
) -> tuple[messages.ChildReply, bytes]:
    """Load one model, time or run it, and free it."""
    model = load(backend, request.job)
    try:
        if request.settings is not None:
            return messages.ChildReply(timing=_time(model, request.settings, worker, pace)), b""
        outputs = model.run(frames.from_bytes(request.tensors, payload))
        return messages.ChildReply(tensors=frames.describe(outputs)), frames.to_bytes(outputs)
    finally:
        model.close()


def _time(
    model: Model, settings: messages.MeasureSettings, worker: WorkerSettings, pace: Pace | None
) -> messages.Timing:
    cores, settings = worker.cores, bounded_waiting(settings, worker.limits)
    if model.elsewhere and (settings.cache == "cold" or settings.energy_ms):
        raise ModelError("another machine computes this model: neither cold caches nor energy can be measured here")
    inputs = model.random_inputs(np.random.default_rng(settings.seed))
    repeat = model.repeater(inputs)
    repeat(settings.warmup_runs)
    root = cores_root(worker.sensors_root)
    before_mhz, events = [frequency_mhz(core, root=root) for core in cores], throttle_events(cores, root)
    prepare = CacheFlush(cores) if settings.cache == "cold" else None
    pace = pace if model.on_cpu else None
    timing = measure(repeat, settings, one_thread=pace is not None, prepare=prepare, pace=pace)
    runs = Runs(pace, settings.layers_ms, settings.patience)
    layers = model.layers(inputs, runs) if settings.layers_ms else []
    after_mhz = [frequency_mhz(core, root=root) for core in cores]
    throttled = any(
        before is not None and after is not None and after < before * (1 - FREQUENCY_DROP)
        for before, after in zip(before_mhz, after_mhz, strict=True)
    )
    noisy = timing.noisy or throttled or throttle_events(cores, root) != events or not runs.enough
    meter = find_meter(on_gpu=not model.on_cpu, root=worker.sensors_root) if settings.energy_ms else None
    energy_mj = None if meter is None else meter.of_one_run_mj(repeat, timing.p50_ms, settings.energy_ms)
    return timing.model_copy(update={"noisy": noisy, "layers": tuple(layers), "energy_mj": energy_mj})


def bounded_waiting(settings: messages.MeasureSettings, limits: ModelLimits) -> messages.MeasureSettings:
    """The settings with the wait for a calm core limited to a part of the wall-clock limit, so that no job fails by waiting."""
    measured_ms = 2 * settings.time_cap_ms + settings.layers_ms  # twice: a noisy measurement is repeated
    patience = min(settings.patience, WAITING_SHARE * limits.wall_s * 1e3 / measured_ms)
    return settings.model_copy(update={"patience": patience})


def serve_segments(argument: str, report: SandboxReport) -> int:
    """Open the runtime, then load a SubNet and run its segments. report: the sandbox of this process."""
    settings = WorkerSettings.model_validate_json(argument)
    loaded: list[_LoadedSegments] = []

    def answer(backend: Backend, request: messages.ChildSegments, payload: bytes) -> tuple[messages.ChildReply, bytes]:
        if request.load is not None:
            assert not loaded, "a child serves one SubNet"
            loaded.append(_LoadedSegments(backend, request.load))
            return messages.ChildReply(), b""
        return loaded[0].run(request, payload)

    return serve_requests(settings, report, messages.ChildSegments, answer)


class _LoadedSegments:
    """The models of a SubNet, each run once when it is loaded."""

    def __init__(self, backend: Backend, subnet: messages.ServedSubNet) -> None:
        self.subnet, self.shapes = subnet, subnet.shapes
        self.models: list[Model] = []
        for number, segment in enumerate(subnet.segments):
            self.models.append(load(backend, segment))
            self._outputs(number, [np.zeros(shape, np.float32) for shape in segment.input_shapes])

    def run(self, request: messages.ChildSegments, payload: bytes) -> tuple[messages.ChildReply, bytes]:
        """The values that leave the segments of the request, computed from the values that enter."""
        start_s = time.perf_counter()
        names = self.subnet.entering(request.first, request.last)
        tensors = decoded_all(request.tensors, [self.shapes[name] for name in names], payload)
        values = dict(zip(names, tensors, strict=True))
        for number in range(request.first, request.last + 1):
            segment = self.subnet.segments[number]
            outputs = self._outputs(number, [values[name] for name in segment.input_names])
            values |= zip(segment.output_names, outputs, strict=True)
        left = [encoded(values[name], request.coding) for name in self.subnet.leaving(request.first, request.last)]
        computed_ms = (time.perf_counter() - start_s) * 1e3
        reply = messages.ChildReply(activations=tuple(one for one, _ in left), computed_ms=computed_ms)
        return reply, b"".join(content for _, content in left)

    def _outputs(self, number: int, inputs: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs of one segment; ModelError for shapes or types other than the SubNet's."""
        segment = self.subnet.segments[number]
        outputs = self.models[number].run(inputs)
        for name, tensor in zip(segment.output_names, outputs, strict=True):
            if tensor.dtype != np.float32 or tensor.shape != self.shapes[name]:
                got = f"{tensor.dtype} {tensor.shape}"
                raise ModelError(f"segment {number} gives '{name}' as {got}; the SubNet states {self.shapes[name]}")
        return outputs
