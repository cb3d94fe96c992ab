"""ONNX Runtime on one execution provider with a fixed number of threads.

By default: all graph optimisations, one operator after the other. Models run in their own precision: layers between
QuantizeLinear and DequantizeLinear in int8; the CPU has kernels for int8 on every processor.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from profiling_agents.backends.base import (
    LEAST_RUNS,
    ModelError,
    RuntimeOptions,
    check_inputs,
    interquartile_mean,
    library_hash,
    powers_of_two,
    random_arrays,
    restore_shape,
    switch,
    thread_option,
    translated,
)
from profiling_agents.backends.onnx_files import job_of, read_onnx
from profiling_agents.backends.own_names import NamedModel, OwnNames
from profiling_agents.messages import (
    DEFAULT_ENGINE,
    AgentError,
    Engine,
    EngineOption,
    Format,
    JobMessage,
    LayerTiming,
    Precision,
    RuntimeInfo,
    RuntimeSettings,
)
from profiling_agents.sensing.machine import Runs

TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}
NODE_EVENT = "_kernel_time"
PROFILE_PREFIX = "profile"  # in the child's private folder
MOST_EVENTS = 4000  # keeps a profile below the largest file that the child may write
CPU = "CPUExecutionProvider"
PROVIDER_OPTIONS = {"CUDAExecutionProvider": {"use_tf32": "0"}}
"""TF32 would be another precision under the name of fp32."""

ENUMERATIONS = {
    "execution_mode": onnxruntime.ExecutionMode,
    "execution_order": onnxruntime.ExecutionOrder,
    "graph_optimization_level": onnxruntime.GraphOptimizationLevel,
}
"""Fields of `SessionOptions` whose values are names. Settings with a dot are entries of its configuration."""
SPINNING = ("session.intra_op.allow_spinning", "session.inter_op.allow_spinning")
EVERYWHERE = (
    EngineOption(
        name="graph",
        choices=("all", "extended", "basic"),
        default="all",
        does="Optimisations of the graph; all: blocks of channels (NCHWc), too; extended: fused kernels; basic: folding.",
        sets={
            "extended": {"graph_optimization_level": "ORT_ENABLE_EXTENDED"},
            "basic": {"graph_optimization_level": "ORT_ENABLE_BASIC"},
        },
    ),
    EngineOption(
        name="order",
        choices=("default", "priority"),
        default="default",
        does="Nodes run in the runtime's own topological order, or by their priorities, then in the file's order.",
        sets={"priority": {"execution_order": "PRIORITY_BASED"}},
    ),
)
ON_CPU = (
    switch(
        "memory_pattern",
        "Memory of all tensors is planned as one block after the first run.",
        {"enable_mem_pattern": False},
    ),
    switch(
        "arena",
        "Freed memory is kept for the next tensors instead of given back to the system.",
        {"enable_cpu_mem_arena": False},
    ),
)
ON_CORES = (switch("spinning", "Idle threads wait in a loop instead of sleeping.", dict.fromkeys(SPINNING, "0")),)
AT_ONCE = "operators_at_once"
INSIDE = "intra_op_num_threads"


def engine_options(threads: int, provider: str) -> tuple[EngineOption, ...]:
    """The options that can matter: options of threads if there are several, of memory and threads on the CPU."""
    if provider != CPU:
        return EVERYWHERE
    if threads == 1:
        return (*EVERYWHERE, *ON_CPU)
    counts = powers_of_two(threads)
    does = "Operators on different branches run side by side, so many at once; the threads are divided among them."
    sets = {count: _side_by_side(threads, int(count)) for count in counts[1:]}
    at_once = EngineOption(name=AT_ONCE, choices=counts, default="1", does=does, sets=sets)
    return (*EVERYWHERE, *ON_CPU, *ON_CORES, *thread_option(threads, INSIDE), at_once)


def _side_by_side(threads: int, operators: int) -> RuntimeSettings:
    """Settings to run this many operators at once, each with its share of the threads; never more threads than given."""
    return {
        INSIDE: threads // operators,
        "inter_op_num_threads": operators,
        "execution_mode": "ORT_PARALLEL",
    }


def session_settings(threads: int, provider: str) -> RuntimeSettings:
    """Settings of the default engine. Spinning threads would take time from anything else that is timed on this machine."""
    spinning: RuntimeSettings = dict.fromkeys(SPINNING, "1" if threads > 1 else "0")
    # operators that a provider does not support would silently run on the CPU
    alone: RuntimeSettings = {} if provider == CPU else {"session.disable_cpu_ep_fallback": "1"}
    return {INSIDE: threads, "inter_op_num_threads": 1, **spinning, **alone}


def precisions_on(provider: str) -> tuple[Precision, ...]:
    """Precisions in which a provider runs models. Except on the CPU, layers in int8 would run in fp32."""
    return ("fp32", "int8") if provider == CPU else ("fp32",)


class OnnxRuntimeBackend:
    """One execution provider with a fixed number of threads."""

    formats: tuple[Format, ...] = ("onnx",)

    def __init__(self, options: RuntimeOptions) -> None:
        self._provider = options.provider or CPU
        self._precision = options.precision
        self._precisions = precisions_on(self._provider)
        if self._precision not in self._precisions:
            raise AgentError(
                f"--precision: got {self._precision}; backend 'onnxruntime' runs models as they are: "
                f"{', '.join(self._precisions)} ({self._provider})"
            )
        self.settings = session_settings(options.threads, self._provider)
        self.engine_options = engine_options(options.threads, self._provider)
        onnxruntime.set_default_logger_severity(3)
        available = onnxruntime.get_available_providers()
        if self._provider not in available:
            raise AgentError(f"--provider: got {self._provider}; allowed: {', '.join(available)}")
        if self._provider != CPU:
            self._check_provider()

    def describe(self) -> RuntimeInfo:
        """Version, the wheel's build line, and the hash of the library."""
        folder = Path(onnxruntime.__file__).parent / "capi"
        libraries = sorted((*folder.glob("libonnxruntime.so*"), *folder.glob("onnxruntime_pybind11_state*")))
        build = f"{library_hash(libraries[0])} {onnxruntime.get_build_info()}"
        return RuntimeInfo(
            backend="onnxruntime",
            version=onnxruntime.__version__,
            build=build,
            formats=self.formats,
            precision=self._precision,
            precisions=self._precisions,
            provider=self._provider,
            settings=self.settings,
            engine_options=self.engine_options,
        )

    def load(self, files: Sequence[Path], job: JobMessage) -> NamedModel:
        """Parse, refuse external data, and make a session; ModelError when the runtime refuses the model."""
        names = OwnNames()
        with names.restored_errors():
            model = read_onnx(files[0].read_bytes(), names)
            own_job = job_of(job, model, names)
            session = partial(self._session, model.SerializeToString(), job.engine)
            return NamedModel(OnnxModel(own_job, session, on_cpu=self._provider == CPU), names)

    def _session(
        self, content: bytes, engine: Engine = DEFAULT_ENGINE, profile: str | None = None
    ) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        for name, value in engine.applied(self.settings, self.engine_options).items():
            if "." in name:
                options.add_session_config_entry(name, str(value))
            else:
                setattr(options, name, getattr(ENUMERATIONS[name], str(value)) if name in ENUMERATIONS else value)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        providers = [(self._provider, PROVIDER_OPTIONS.get(self._provider, {}))]
        with translated("ONNX Runtime", "load"):
            return onnxruntime.InferenceSession(content, options, providers=providers)

    def _check_provider(self) -> None:
        """AgentError unless the provider runs a matrix product here."""
        value = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=(16, 16))
        node = helper.make_node("MatMul", ["a", "b"], ["c"])
        graph = helper.make_graph([node], "probe", [value("a"), value("b")], [value("c")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
        ones = np.ones((16, 16), np.float32)
        try:
            (product,) = self._session(model.SerializeToString()).run(None, {"a": ones, "b": ones})
        except Exception as error:
            raise AgentError(f"--provider: {self._provider} does not run on this device: {error}") from error
        if not np.array_equal(product, np.full((16, 16), 16, np.float32)):
            raise AgentError(f"--provider: {self._provider} computes a wrong matrix product on this device")


class OnnxModel:
    """One inference session; `open_session` opens further sessions, profiled if given the prefix of the profile's file."""

    elsewhere = False

    def __init__(
        self, job: JobMessage, open_session: Callable[..., onnxruntime.InferenceSession], *, on_cpu: bool
    ) -> None:
        self.on_cpu = on_cpu
        self._job = job
        self._open_session = open_session
        self._session = session = open_session()
        self._types = {node.name: node.type for node in session.get_inputs()}
        foreign = [kind for kind in self._types.values() if kind not in TYPES]
        if foreign:
            raise ModelError(f"inputs: type {foreign[0]}; allowed: {', '.join(TYPES)}")

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Standard normal floats, zeros for all other types."""
        types = [np.dtype(TYPES[self._types[name]]) for name in self._job.input_names]
        return random_arrays(self._job.input_shapes, types, rng)

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs n times with inputs and outputs bound once."""
        self.run(inputs)
        binding = self._session.io_binding()
        for name, array in zip(self._job.input_names, inputs, strict=True):
            binding.bind_cpu_input(name, array)
        for name in self._job.output_names:
            binding.bind_output(name)
        run_bound = self._session.run_with_iobinding

        def repeat(runs: int) -> None:
            for _ in range(runs):
                run_bound(binding)

        return repeat

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """The runtime's own profile of each of its nodes, from a separate session."""
        feeds = dict(zip(self._job.input_names, inputs, strict=True))
        once = len(self._profile(feeds, iter([None])))
        most = max(LEAST_RUNS, MOST_EVENTS // max(once, 1))
        events = self._profile(feeds, runs.each(LEAST_RUNS, most))
        durations_us: dict[str, list[int]] = {}
        kinds: dict[str, str] = {}
        for event in events:
            name = event["name"].removesuffix(NODE_EVENT)
            durations_us.setdefault(name, []).append(event["dur"])
            kinds[name] = event["args"]["op_name"]
        return [
            LayerTiming(
                name=name, kind=kinds[name], time_ms=float(interquartile_mean(np.array(runs.kept(samples))) * 1e-3)
            )
            for name, samples in durations_us.items()
        ]

    def _profile(self, feeds: dict[str, np.ndarray], runs: Iterator[None]) -> list[dict[str, Any]]:
        """The events of nodes over these runs, without the warm-up run before them."""
        session = self._open_session(profile=PROFILE_PREFIX)
        with translated("ONNX Runtime", "profile"):
            try:
                session.run(None, feeds)
                for _ in runs:
                    session.run(None, feeds)
            finally:
                file = Path(session.end_profiling())
            try:
                events = [event for event in json.loads(file.read_bytes()) if event["name"].endswith(NODE_EVENT)]
            except ValueError as error:
                raise ModelError("its profile is larger than a file may be here") from error
            finally:
                file.unlink()
        nodes = len({event["name"] for event in events})
        return events[nodes:]

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Outputs as the runtime gives them, or in the job's output shapes."""
        check_inputs(self._job, inputs)
        names = self._job.output_names
        with translated("ONNX Runtime", "run"):
            outputs = self._session.run(list(names), dict(zip(self._job.input_names, inputs, strict=True)))
        if not all(isinstance(output, np.ndarray) for output in outputs):
            raise ModelError("outputs: not all of them are tensors")
        if self._job.output_shapes is None:
            return outputs
        return [
            restore_shape(name, array, shape)
            for name, array, shape in zip(names, outputs, self._job.output_shapes, strict=True)
        ]

    def close(self) -> None:
        """Free the session."""
        del self._session
