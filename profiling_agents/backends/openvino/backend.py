"""OpenVINO on the CPU, from ONNX files: one stream, tuned for latency, a fixed number of threads.

The calling thread is one of the threads that compute. OpenVINO binds none of them, so they stay on the cores to which the
agent is bound. The precision is always stated: by default, OpenVINO takes bf16 if the processor has it.
Quantised layers run in int8 wherever the processor can; the other layers of such a model run in fp32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import openvino

from profiling_agents.backends.base import (
    ModelError,
    RuntimeOptions,
    check_inputs,
    library_hash,
    powers_of_two,
    random_arrays,
    require_cpu,
    restore_shape,
    switch,
    thread_option,
    translated,
)
from profiling_agents.backends.onnx_files import input_types, job_of, read_onnx
from profiling_agents.backends.openvino.layers import time_layers
from profiling_agents.backends.openvino.probe import (
    PRECISIONS,
    int8_model,
    probe_inputs,
    probe_model,
    rounded_precisions,
    runs_in_int8,
)
from profiling_agents.backends.own_names import NamedModel, OwnNames
from profiling_agents.messages import (
    AgentError,
    EngineOption,
    Format,
    JobMessage,
    LayerTiming,
    Precision,
    RuntimeInfo,
    RuntimeSettings,
)
from profiling_agents.sensing.pace import Runs

EVERYWHERE = (
    EngineOption(
        name="denormals",
        choices=("kept", "zero"),
        default="kept",
        does="Numbers too small for the usual form are computed exactly, which is slow, or are zero.",
        sets={"zero": {"CPU_DENORMALS_OPTIMIZATION": True}},
    ),
)
ON_CORES = (
    EngineOption(
        name="hint",
        choices=("latency", "throughput"),
        default="latency",
        does="What OpenVINO's own choices are for: one sample soon, or many samples at once.",
        sets={"throughput": {"PERFORMANCE_HINT": "THROUGHPUT"}},
    ),
    switch(
        "hyper_threading",
        "Two threads may share a core that can run two.",
        {"ENABLE_HYPER_THREADING": False},
    ),
)


def engine_options(threads: int) -> tuple[EngineOption, ...]:
    """The options that can matter: options of threads only if there are several."""
    if threads == 1:
        return EVERYWHERE
    counts = powers_of_two(threads)
    does = "Independent groups of threads, of which one computes a sample; the threads are divided among them."
    sets: dict[str, RuntimeSettings] = {count: {"NUM_STREAMS": int(count)} for count in counts[1:]}
    streams = EngineOption(name="streams", choices=counts, default="1", does=does, sets=sets)
    return (*EVERYWHERE, *ON_CORES, *thread_option(threads, "INFERENCE_NUM_THREADS"), streams)


def compile_settings(threads: int, precision: Precision) -> RuntimeSettings:
    """Settings of the default engine, as `compile_model` takes them."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": PRECISIONS.get(precision, PRECISIONS["fp32"]),
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,  # all the agent's cores are its own, whichever they are
    }


class OpenVinoBackend:
    """OpenVINO in one precision with a fixed number of threads."""

    formats: tuple[Format, ...] = ("onnx",)

    def __init__(self, options: RuntimeOptions) -> None:
        require_cpu(options)
        self._core = openvino.Core()
        self._core.set_property({"CACHE_DIR": ""})
        self._precision = options.precision
        self._threads = options.threads
        self._found = self._probe()
        if self._precision not in self._found:
            raise AgentError(
                f"--precision: got {self._precision}, which OpenVINO {_version()} does not compute in on this processor; "
                f"allowed: {', '.join(self._found)}"
            )
        self.settings = compile_settings(options.threads, options.precision)
        self.engine_options = engine_options(options.threads)

    def describe(self) -> RuntimeInfo:
        """Version, the hash of the library that computes, and the precisions that were found."""
        plugin = self._core.get_versions("CPU")["CPU"]
        (library,) = (Path(openvino.__file__).parent / "libs").glob(f"*{plugin.description}*")
        return RuntimeInfo(
            backend="openvino",
            version=_version(),
            build=f"{library_hash(library)} {plugin.build_number}",
            formats=self.formats,
            precision=self._precision,
            precisions=self._found,
            settings=self.settings,
            engine_options=self.engine_options,
        )

    def load(self, files: Sequence[Path], job: JobMessage) -> NamedModel:
        """Parse, refuse external data, and compile; ModelError when OpenVINO refuses the model."""
        names = OwnNames()
        with names.restored_errors():
            file = read_onnx(files[0].read_bytes(), names)
            own_job = job_of(job, file, names)
            types = input_types(file)
            with translated("OpenVINO", "load"):
                model = self._core.read_model(file.SerializeToString())
                if model.is_dynamic():
                    model.reshape(dict(zip(own_job.input_names, own_job.input_shapes, strict=True)))
                settings = job.engine.applied(self.settings, self.engine_options)
                return NamedModel(OpenVinoModel(own_job, partial(self._compiled, model, settings), types), names)

    def _compiled(
        self, model: openvino.Model, settings: RuntimeSettings, *, profiled: bool = False
    ) -> openvino.CompiledModel:
        return self._core.compile_model(model, "CPU", {**settings, "PERF_COUNT": profiled})

    def _probe(self) -> tuple[Precision, ...]:
        """The precisions in which this processor computes, fp32 first. AgentError unless OpenVINO takes the number of threads.

        The probe runs once here, so that the libraries map their memory before memory is limited.
        """
        model = self._core.read_model(probe_model().SerializeToString())
        inputs = probe_inputs()
        outputs: dict[Precision, list[np.ndarray]] = {}
        for precision in PRECISIONS:
            compiled = self._compiled(model, compile_settings(self._threads, precision))
            if (taken := compiled.get_property("INFERENCE_NUM_THREADS")) != self._threads:
                raise AgentError(f"--threads: got {self._threads}; OpenVINO takes {taken} on the cores that it may use")
            results = compiled.create_infer_request().infer(inputs)
            outputs[precision] = [results[index] for index in range(len(results))]
        quantised = self._core.read_model(int8_model().SerializeToString())
        in_int8 = runs_in_int8(self._compiled(quantised, compile_settings(self._threads, "int8")))
        return (*rounded_precisions(outputs), *(("int8",) if in_int8 else ()))


class OpenVinoModel:
    """One compiled model; `compiled` compiles further ones, for example to time layers."""

    on_cpu = True
    elsewhere = False

    def __init__(
        self, job: JobMessage, compiled: Callable[..., openvino.CompiledModel], types: dict[str, np.dtype]
    ) -> None:
        self._job = job
        self._compiled = compiled
        self._types = types
        self._request = compiled().create_infer_request()

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Standard normal floats, zeros for all other types."""
        types = [self._types[name] for name in self._job.input_names]
        return random_arrays(self._job.input_shapes, types, rng)

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs n times with inputs bound once; outputs stay where OpenVINO writes them."""
        infer = self._bound(self._request, inputs)
        with translated("OpenVINO", "run"):
            infer()

        def repeat(runs: int) -> None:
            for _ in range(runs):
                infer()

        return repeat

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """OpenVINO's own counters of each layer, from a separate compiled model."""
        with translated("OpenVINO", "profile"):
            compiled = self._compiled(profiled=True)
            request = compiled.create_infer_request()
            return time_layers(compiled, request, self._bound(request, inputs), self._job.input_names, runs)

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs as the runtime gives them, or in the job's output shapes."""
        check_inputs(self._job, inputs)
        names = self._job.output_names
        with translated("OpenVINO", "run"):
            self._bound(self._request, inputs)()
            outputs = [np.array(self._request.get_tensor(name).data) for name in names]
        if self._job.output_shapes is None:
            return outputs
        return [restore_shape(*one) for one in zip(names, outputs, self._job.output_shapes, strict=True)]

    def close(self) -> None:
        """Free the compiled model."""
        del self._request, self._compiled

    def _bound(self, request: openvino.InferRequest, inputs: Sequence[np.ndarray]) -> Callable[[], object]:
        """A function that runs the request once on copies of these inputs."""
        for name, array in zip(self._job.input_names, inputs, strict=True):
            if array.dtype != self._types[name]:
                raise ModelError(f"input '{name}': got {array.dtype}; the model takes {self._types[name]}")
            request.set_tensor(name, openvino.Tensor(array))
        return partial(request.infer, share_outputs=True)


def _version() -> str:
    return str(openvino.__version__).split("-")[0]
