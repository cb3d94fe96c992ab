"""ExecuTorch with the kernels of XNNPACK, from programs (.pte), on the CPU.

A program has no names: its inputs and outputs follow the order of the job. Inputs are set once and not copied in a run.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import executorch.extension.pybindings.portable_lib as runtime
import numpy as np
import torch

from profiling_agents.backends.base import (
    LEAST_RUNS,
    ModelError,
    RuntimeOptions,
    check_inputs,
    library_hash,
    random_arrays,
    require_cpu,
    require_fp32,
    restore_shape,
    thread_option,
    translated,
)
from profiling_agents.backends.executorch.layers import time_layers
from profiling_agents.messages import (
    AgentError,
    EngineOption,
    Format,
    JobMessage,
    LayerTiming,
    RuntimeInfo,
    RuntimeSettings,
)
from profiling_agents.sensing.pace import Runs

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


class ExecuTorchBackend:
    """XNNPACK's thread pool with a fixed number of threads."""

    formats: tuple[Format, ...] = ("executorch",)

    def __init__(self, options: RuntimeOptions) -> None:
        require_cpu(options)
        require_fp32(options)
        if KERNELS not in runtime._get_registered_backend_names():
            raise AgentError(f"backend 'executorch': this build of ExecuTorch {version('executorch')} has no XNNPACK")
        self._threads = options.threads
        self.settings: RuntimeSettings = {THREADS: options.threads}
        self.engine_options: tuple[EngineOption, ...] = thread_option(options.threads, THREADS)
        _take_threads(options.threads)

    def describe(self) -> RuntimeInfo:
        """Version, and the hash of the library with XNNPACK's kernels."""
        library = Path(runtime.__file__).parents[2] / "lib" / "libexecutorch_backend_xnnpack.so"
        return RuntimeInfo(
            backend="executorch",
            version=version("executorch"),
            build=library_hash(library),
            formats=self.formats,
            settings=self.settings,
            engine_options=self.engine_options,
        )

    def load(self, files: Sequence[Path], job: JobMessage) -> "ExecuTorchModel":
        """Load a program; ModelError when ExecuTorch refuses it, or when its inputs differ from those that the job states."""
        _take_threads(int(job.engine.settled(self.engine_options).get("threads", self._threads)))
        with translated("ExecuTorch", "load"):
            return ExecuTorchModel(job, files[0].read_bytes())


def _take_threads(threads: int) -> None:
    """Set XNNPACK's threads for models loaded from now on; AgentError if ExecuTorch takes another number."""
    if runtime._threadpool_get_thread_count() != threads:
        runtime._unsafe_reset_threadpool(threads)  # safe while no model is loaded
    if (got := runtime._threadpool_get_thread_count()) != threads:
        raise AgentError(f"--threads: got {threads}; ExecuTorch takes {got} here")


class ExecuTorchModel:
    """One loaded program and its method."""

    on_cpu = True
    elsewhere = False

    def __init__(self, job: JobMessage, content: bytes) -> None:
        self._job, self._content = job, content
        self._program = runtime._load_program_from_buffer(content)
        self._method = self._program.load_method(METHOD)
        meta = self._method.method_meta()
        counts = meta.num_inputs(), meta.num_outputs()
        if counts != (len(job.input_names), len(job.output_names)):
            raise ModelError(
                f"the program has {counts[0]} inputs and {counts[1]} outputs; the job states "
                f"{len(job.input_names)} and {len(job.output_names)}"
            )
        found = [meta.input_tensor_meta(number) for number in range(counts[0])]
        if foreign := [one.dtype() for one in found if one.dtype() not in TYPES]:
            raise ModelError(f"inputs: ExecuTorch's type {foreign[0]}; allowed: {', '.join(map(str, TYPES.values()))}")
        self._types = [TYPES[one.dtype()] for one in found]
        self._feeds: tuple[torch.Tensor, ...] = ()

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Standard normal floats, zeros for all other types."""
        return random_arrays(self._job.input_shapes, self._types, rng)

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs n times on inputs that are set once."""
        self._set(inputs)
        execute = self._method.execute
        with translated("ExecuTorch", "run"):
            execute()

        def repeat(runs: int) -> None:
            for _ in range(runs):
                execute()

        return repeat

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """XNNPACK's layers, and operators that ExecuTorch runs itself, in order, by their own names."""
        with translated("ExecuTorch", "profile"):
            method, dump = self._traced()
            method.set_inputs(self._feeds)
            method.execute()
            dump()
            dumps = []
            for _ in runs.each(LEAST_RUNS):
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

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs as the runtime gives them, or in the job's output shapes."""
        self._set(inputs)
        with translated("ExecuTorch", "run"):
            self._method.execute()
            outputs = [output.numpy() for output in self._method.get_outputs()]
        if self._job.output_shapes is None:
            return outputs
        named = zip(self._job.output_names, outputs, self._job.output_shapes, strict=True)
        return [restore_shape(*one) for one in named]

    def close(self) -> None:
        """Free the method, then its program."""
        del self._method
        del self._program

    def _set(self, inputs: Sequence[np.ndarray]) -> None:
        """Set the inputs; they must live as long as they are used."""
        check_inputs(self._job, inputs)
        for name, array, dtype in zip(self._job.input_names, inputs, self._types, strict=True):
            if array.dtype != dtype:
                raise ModelError(f"input '{name}': got {array.dtype}; the model takes {dtype}")
        self._feeds = tuple(torch.tensor(array) for array in inputs)
        with translated("ExecuTorch", "take the inputs of"):
            self._method.set_inputs(self._feeds)
