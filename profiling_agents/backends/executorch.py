"""ExecuTorch with the kernels of XNNPACK, from programs (.pte), on the CPU, and the times of its layers.

A program has no names: its inputs and outputs follow the order of the job. Inputs are set once and not copied in a run.

The times come from the events of a traced program (ETDump, a flatbuffer; schema "ED00"). XNNPACK rounds a layer's time
down to whole µs. The time of the call that ran the layers is exact: the time that the layers lack is divided among them,
up to 1 µs each.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import executorch.extension.pybindings.portable_lib as runtime
import numpy as np
import torch
from flatbuffers import number_types
from flatbuffers.table import Table

from profiling_agents.backends import base
from profiling_agents.backends.sanitized_names import SanitizedNames
from profiling_agents.messages import AgentError, JobMessage, LayerTiming
from profiling_agents.sensing.machine import Runs

SIZE_PREFIX = 4
RUNS_OF_DUMP, NAME_OF_RUN, EVENTS_OF_RUN, PROFILE_OF_EVENT = 1, 0, 3, 0
"""Positions of fields in their tables."""
NAME, NAME_OF_LAYER, START, END = 0, 4, 6, 7
EXECUTION = "Execute"
CALL, AROUND_LAYERS = "DELEGATE_CALL", frozenset({"OPERATOR_CALL", "Method::execute"})
OWN_OPERATOR = "native_call_"
"""Prefix of the name of an operator that XNNPACK lacks and ExecuTorch runs itself."""
ROUNDED_NS = 1000.0


@dataclass(frozen=True, slots=True)
class TracedEvent:
    """One traced event and its duration [ns]."""

    name: str
    time_ns: float


def time_layers(dumps: Sequence[bytes]) -> list[LayerTiming]:
    """Mean times of the layers in order, each over the runs in which it was not interrupted. dumps: one per run."""
    runs = [_layers(_events(dump)) for dump in dumps]
    if len({tuple(event.name for event in run) for run in runs}) != 1:
        raise base.ModelError("ExecuTorch's runs differ in their layers")
    rows_ns = np.array([[event.time_ns for event in run] for run in runs], np.float64)
    times_ns = base.uninterrupted_mean(rows_ns, ROUNDED_NS)
    return [
        LayerTiming(name=event.name, kind=event.name.partition(" (")[0], time_ms=float(time_ns) * 1e-6)
        for event, time_ns in zip(runs[0], times_ns, strict=True)
    ]


def _layers(events: Iterable[TracedEvent]) -> list[TracedEvent]:
    """The events of layers; XNNPACK's events come before the call that ran them."""
    layers: list[TracedEvent] = []
    inner: list[TracedEvent] = []
    for event in events:
        if event.name == CALL and inner:
            lost_ns = (event.time_ns - sum(one.time_ns for one in inner)) / len(inner)
            added_ns = min(max(lost_ns, 0.0), ROUNDED_NS)
            layers += [TracedEvent(one.name, one.time_ns + added_ns) for one in inner]
            inner = []
        elif event.name.startswith(OWN_OPERATOR):
            layers.append(event)
        elif event.name not in AROUND_LAYERS | {CALL}:
            inner.append(event)
    return layers


def _events(dump: bytes) -> list[TracedEvent]:
    """The events of execution in order; ModelError when the file is not of the schema."""
    try:
        return list(_executed(dump))
    except Exception as error:  # the model is foreign: any number in its trace may be wrong
        raise base.ModelError(f"ExecuTorch's trace cannot be read: {error}") from error


def _executed(dump: bytes) -> Iterator[TracedEvent]:
    root = Table(dump, SIZE_PREFIX)
    root.Pos = root.Indirect(root.Pos)
    for run in _tables(root, RUNS_OF_DUMP):
        if _text(run, NAME_OF_RUN) != EXECUTION:
            continue
        for event in _tables(run, EVENTS_OF_RUN):
            for profile in _table(event, PROFILE_OF_EVENT):
                yield TracedEvent(
                    _text(profile, NAME) or _text(profile, NAME_OF_LAYER),
                    _number(profile, END) - _number(profile, START),
                )


def _at(table: Table, field: int) -> int:
    """The offset of a field in its table; 0 if the table lacks it."""
    return int(table.Offset(4 + 2 * field))


def _tables(table: Table, field: int) -> Iterator[Table]:
    if offset := _at(table, field):
        start = table.Vector(offset)
        for index in range(table.VectorLen(offset)):
            yield Table(table.Bytes, table.Indirect(start + 4 * index))


def _table(table: Table, field: int) -> Iterator[Table]:
    if offset := _at(table, field):
        yield Table(table.Bytes, table.Indirect(table.Pos + offset))


def _text(table: Table, field: int) -> str:
    offset = _at(table, field)
    return bytes(table.String(table.Pos + offset)).decode() if offset else ""


def _number(table: Table, field: int) -> int:
    offset = _at(table, field)
    return int(table.Get(number_types.Uint64Flags, table.Pos + offset)) if offset else 0


KERNELS = "XnnpackBackend"
METHOD = "forward"
THREADS = "_unsafe_reset_threadpool"
DUMP = "events.etdump"
TYPES: dict[int, np.dtype] = {
    0: np.dtype(np.uint8),
    1: np.dtype(np.int8),
    3: np.dtype(np.int32),
    4: np.dtype(np.int64),
    6: np.dtype(np.float32),
    7: np.dtype(np.float64),
    11: np.dtype(np.bool_),
}
"""Element types by ExecuTorch's numbers (`ScalarType`)."""


class ExecuTorchBackend(base.Backend):
    """XNNPACK's thread pool with a fixed number of threads."""

    name = "executorch"
    formats = ("executorch",)

    def __init__(self, options: base.RuntimeOptions) -> None:
        base.require_cpu(options)
        base.require_fp32(options)
        if KERNELS not in runtime._get_registered_backend_names():
            raise AgentError(f"backend 'executorch': this build of ExecuTorch {version('executorch')} has no XNNPACK")
        self._threads = options.threads
        self.settings = {THREADS: options.threads}
        self.engine_options = base.thread_option(options.threads, THREADS)
        _take_threads(options.threads)

    def version_and_build(self) -> tuple[str, str]:
        """Version, and the hash of the library with XNNPACK's kernels."""
        library = Path(runtime.__file__).parents[2] / "lib" / "libexecutorch_backend_xnnpack.so"
        return version("executorch"), base.library_hash(library)

    def load(self, files: Sequence[Path], job: JobMessage) -> base.Model:
        """Load a program; ModelError when ExecuTorch refuses it, or when its inputs differ from those that the job states."""
        _take_threads(int(job.engine.settled(self.engine_options).get("threads", self._threads)))
        with base.translated("ExecuTorch", "load"):
            return ExecuTorchModel(job, files[0].read_bytes())


def _take_threads(threads: int) -> None:
    """Set XNNPACK's threads for models loaded from now on; AgentError if ExecuTorch takes another number."""
    if runtime._threadpool_get_thread_count() != threads:
        runtime._unsafe_reset_threadpool(threads)  # safe while no model is loaded
    if (got := runtime._threadpool_get_thread_count()) != threads:
        raise AgentError(f"--threads: got {threads}; ExecuTorch takes {got} here")


class ExecuTorchModel(base.Model):
    """One loaded program and its method."""

    runtime = "ExecuTorch"

    def __init__(self, job: JobMessage, content: bytes) -> None:
        self._content = content
        self._program = runtime._load_program_from_buffer(content)
        self._method = self._program.load_method(METHOD)
        meta = self._method.method_meta()
        counts = meta.num_inputs(), meta.num_outputs()
        if counts != (len(job.input_names), len(job.output_names)):
            raise base.ModelError(
                f"the program has {counts[0]} inputs and {counts[1]} outputs; the job states "
                f"{len(job.input_names)} and {len(job.output_names)}"
            )
        found = [meta.input_tensor_meta(number) for number in range(counts[0])]
        if foreign := [one.dtype() for one in found if one.dtype() not in TYPES]:
            raise base.ModelError(
                f"inputs: ExecuTorch's type {foreign[0]}; allowed: {', '.join(map(str, TYPES.values()))}"
            )
        types = [TYPES[one.dtype()] for one in found]
        super().__init__(job, dict(zip(job.input_names, types, strict=True)), SanitizedNames())
        self._feeds: tuple[torch.Tensor, ...] = ()

    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs n times on inputs that are set once."""
        self._set(inputs)
        self._method.execute()
        return base.repeater_of(self._method.execute)

    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """XNNPACK's layers, and operators that ExecuTorch runs itself, in order, by their own names."""
        method, dump = self._traced()
        method.set_inputs(self._feeds)
        method.execute()
        dump()
        dumps = []
        for _ in runs.each(base.LEAST_RUNS):
            method.execute()
            dumps.append(dump())
        return time_layers(runs.kept(dumps))

    def _traced(self) -> tuple[Any, Callable[[], bytes]]:
        """The method with its events recorded, and a function that takes the events since its last call."""
        program = runtime._load_program_from_buffer(self._content, enable_etdump=True)

        def dump() -> bytes:
            file = Path(DUMP)  # in the child's private folder
            try:
                program.write_etdump_result_to_file(str(file))
                return file.read_bytes()
            finally:
                file.unlink(missing_ok=True)

        return program.load_method(METHOD), dump

    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        self._set(inputs)
        self._method.execute()
        return [output.numpy() for output in self._method.get_outputs()]

    def close(self) -> None:
        """Free the method, then its program."""
        del self._method
        del self._program

    def _set(self, inputs: Sequence[np.ndarray]) -> None:
        """Set the inputs; they must live as long as they are used."""
        self._feeds = tuple(torch.tensor(array) for array in inputs)
        with base.translated("ExecuTorch", "take the inputs of"):
            self._method.set_inputs(self._feeds)
