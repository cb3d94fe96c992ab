"""Loading and running foreign models in the child process, inside its sandbox.

Frames arrive on stdin and leave on a private copy of stdout. Output of the runtime goes to stderr, a log file that the
service keeps. The working folder holds the models, named by digest.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from profiling_agents import frames
from profiling_agents.backends import open_backend
from profiling_agents.backends.base import Backend, Model, ModelError, ModelMemoryError
from profiling_agents.execution.limits import ModelLimits, allow_cpu, allow_memory
from profiling_agents.execution.measure import measure
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.messages import (
    AgentError,
    ChildReply,
    ChildRequest,
    JobMessage,
    MeasureSettings,
    Message,
    Sandbox,
    Timing,
)
from profiling_agents.sandbox.entering import SandboxReport
from profiling_agents.sensing.caches import CacheFlush
from profiling_agents.sensing.energy import find_meter
from profiling_agents.sensing.machine import pin
from profiling_agents.sensing.pace import Pace, Runs
from profiling_agents.sensing.sensors import cores_root, frequency_mhz, throttle_events

FREQUENCY_DROP = 0.05
"""A frequency that falls by more than this share during a measurement makes it noisy (throttling)."""

WAITING_SHARE = 0.25
"""Share of the wall-clock limit for waiting until the core is calm."""


Request = TypeVar("Request", bound=Message)


def serve(argument: str, report: SandboxReport) -> int:
    """Open the runtime, then load, run and free one model after the other. report: the sandbox of this process."""
    settings = WorkerSettings.model_validate_json(argument)
    pace = Pace() if len(settings.cores) == 1 else None

    def answer(backend: Backend, request: ChildRequest, payload: bytes) -> tuple[ChildReply, bytes]:
        return _answer(backend, settings, pace, request, payload)

    return serve_requests(settings, report, ChildRequest, answer)


def serve_requests(
    settings: WorkerSettings,
    report: SandboxReport,
    kind: type[Request],
    answer: Callable[[Backend, Request, bytes], tuple[ChildReply, bytes]],
) -> int:
    """Open the runtime, then answer requests of one kind until stdin closes."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pin(settings.cores)
    try:
        backend = open_backend(settings)
        runtime = backend.describe()
        allow_memory(settings.limits.memory_mib)
        sandbox = Sandbox(standing=tuple(report.standing), missing=tuple(report.missing))
        _send(replies, ChildReply(runtime=runtime, sandbox=sandbox))
    except AgentError as error:
        _send(replies, ChildReply(reason=str(error)))
        return 1
    while (request := _receive(sys.stdin.buffer, settings.max_payload_bytes)) is not None:
        allow_cpu(settings.limits.cpu_s)
        header, payload = request
        _send(replies, *faults_told(partial(answer, backend, kind.model_validate_json(header), payload)))
    return 0


def _receive(stream: BinaryIO, max_payload_bytes: int) -> tuple[bytes, bytes] | None:
    prefix = stream.read(frames.LENGTHS.size)
    if len(prefix) < frames.LENGTHS.size:
        return None
    header_bytes, payload_bytes = frames.read_lengths(prefix, max_payload_bytes)
    return stream.read(header_bytes), stream.read(payload_bytes)


def _send(stream: BinaryIO, reply: ChildReply, payload: bytes = b"") -> None:
    stream.write(frames.pack(reply.model_dump_json().encode(), payload))
    stream.flush()


def faults_told(answer: Callable[[], tuple[ChildReply, bytes]]) -> tuple[ChildReply, bytes]:
    """The answer; every fault of a model becomes the reason of a failed reply."""
    try:
        return answer()
    except (MemoryError, ModelMemoryError) as error:
        return ChildReply(reason=str(error) or "allocation failed", out_of_memory=True), b""
    except (ModelError, AgentError) as error:
        return ChildReply(reason=str(error)), b""
    except Exception as error:  # noqa: BLE001 - a foreign model may raise anything; the fault is its own
        return ChildReply(reason=f"{type(error).__name__}: {error}"), b""


def load(backend: Backend, job: JobMessage) -> Model:
    """The model of a job. ModelError if its format is unsupported or the runtime refuses it."""
    if job.format not in backend.formats:
        raise ModelError(f"format '{job.format}'; this device takes {', '.join(backend.formats)}")
    job.engine.settled(backend.engine_options)  # refused here, whichever options the backend reads
    return backend.load([Path(digest) for digest in job.files], job)


def _answer(
    backend: Backend, worker: WorkerSettings, pace: Pace | None, request: ChildRequest, payload: bytes
) -> tuple[ChildReply, bytes]:
    """Load one model, time or run it, and free it."""
    model = load(backend, request.job)
    try:
        if request.settings is not None:
            return ChildReply(timing=_time(model, request.settings, worker, pace)), b""
        outputs = model.run(frames.from_bytes(request.tensors, payload))
        return ChildReply(tensors=frames.describe(outputs)), frames.to_bytes(outputs)
    finally:
        model.close()


def _time(model: Model, settings: MeasureSettings, worker: WorkerSettings, pace: Pace | None) -> Timing:
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


def bounded_waiting(settings: MeasureSettings, limits: ModelLimits) -> MeasureSettings:
    """The settings with the wait for a calm core limited to a part of the wall-clock limit, so that no job fails by waiting."""
    measured_ms = 2 * settings.time_cap_ms + settings.layers_ms  # twice: a noisy measurement is repeated
    patience = min(settings.patience, WAITING_SHARE * limits.wall_s * 1e3 / measured_ms)
    return settings.model_copy(update={"patience": patience})
