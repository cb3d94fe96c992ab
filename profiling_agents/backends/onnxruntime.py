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

from profiling_agents import messages
from profiling_agents.backends import base
from profiling_agents.backends.onnx_files import opened
from profiling_agents.backends.sanitized_names import SanitizedNames
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
    messages.EngineOption(
        name="graph",
        choices=("all", "extended", "basic"),
        default="all",
        does="Optimisations of the graph; all: blocks of channels (NCHWc), too; extended: fused kernels; basic: folding.",
        sets={
            "extended": {"graph_optimization_level": "ORT_ENABLE_EXTENDED"},
            "basic": {"graph_optimization_level": "ORT_ENABLE_BASIC"},
        },
    ),
    messages.EngineOption(
        name="order",
        choices=("default", "priority"),
        default="default",
        does="Nodes run in the runtime's own topological order, or by their priorities, then in the file's order.",
        sets={"priority": {"execution_order": "PRIORITY_BASED"}},
    ),
)
ON_CPU = (
    base.switch(
        "memory_pattern",
        "Memory of all tensors is planned as one block after the first run.",
        {"enable_mem_pattern": False},
    ),
    base.switch(
        "arena",
        "Freed memory is kept for the next tensors instead of given back to the system.",
        {"enable_cpu_mem_arena": False},
    ),
)
ON_CORES = (base.switch("spinning", "Idle threads wait in a loop instead of sleeping.", dict.fromkeys(SPINNING, "0")),)
AT_ONCE = "operators_at_once"
INSIDE = "intra_op_num_threads"


def engine_options(threads: int, provider: str) -> tuple[messages.EngineOption, ...]:
    """The options that can matter: options of threads if there are several, of memory and threads on the CPU."""
    if provider != CPU:
        return EVERYWHERE
    if threads == 1:
        return (*EVERYWHERE, *ON_CPU)
    counts = base.powers_of_two(threads)
    does = "Operators on different branches run side by side, so many at once; the threads are divided among them."
    sets = {count: _side_by_side(threads, int(count)) for count in counts[1:]}
    at_once = messages.EngineOption(name=AT_ONCE, choices=counts, default="1", does=does, sets=sets)
    return (*EVERYWHERE, *ON_CPU, *ON_CORES, *base.thread_option(threads, INSIDE), at_once)


def _side_by_side(threads: int, operators: int) -> messages.RuntimeSettings:
    """Settings to run this many operators at once, each with its share of the threads; never more threads than given."""
    return {INSIDE: threads // operators, "inter_op_num_threads": operators, "execution_mode": "ORT_PARALLEL"}


def session_settings(threads: int, provider: str) -> messages.RuntimeSettings:
    """Settings of the default engine. Spinning threads would take time from anything else that is timed on this machine."""
    spinning: messages.RuntimeSettings = dict.fromkeys(SPINNING, "1" if threads > 1 else "0")
    # operators that a provider does not support would silently run on the CPU
    alone: messages.RuntimeSettings = {} if provider == CPU else {"session.disable_cpu_ep_fallback": "1"}
    return {INSIDE: threads, "inter_op_num_threads": 1, **spinning, **alone}


class OnnxRuntimeBackend(base.Backend):
    """One execution provider with a fixed number of threads."""

    name = "onnxruntime"
    formats = ("onnx",)

    def __init__(self, options: base.RuntimeOptions) -> None:
        self.provider = options.provider or CPU
        self.precision = options.precision
        self.precisions = ("fp32", "int8") if self.provider == CPU else ("fp32",)  # elsewhere, int8 layers run in fp32
        if self.precision not in self.precisions:
            raise messages.AgentError(
                f"--precision: got {self.precision}; backend 'onnxruntime' runs models as they are: "
                f"{', '.join(self.precisions)} ({self.provider})"
            )
        self.settings = session_settings(options.threads, self.provider)
        self.engine_options = engine_options(options.threads, self.provider)
        onnxruntime.set_default_logger_severity(3)
        available = onnxruntime.get_available_providers()
        if self.provider not in available:
            raise messages.AgentError(f"--provider: got {self.provider}; allowed: {', '.join(available)}")
        if self.provider != CPU:
            self._check_provider()

    def version_and_build(self) -> tuple[str, str]:
        """Version; the hash of the library, and the wheel's build line."""
        folder = Path(onnxruntime.__file__).parent / "capi"
        libraries = sorted((*folder.glob("libonnxruntime.so*"), *folder.glob("onnxruntime_pybind11_state*")))
        return onnxruntime.__version__, f"{base.library_hash(libraries[0])} {onnxruntime.get_build_info()}"

    def load(self, files: Sequence[Path], job: messages.JobMessage) -> base.Model:
        """Parse, refuse external data, and make a session; ModelError when the runtime refuses the model."""
        with opened(files[0], job) as (model, own_job, names):
            session = partial(self._session, model.SerializeToString(), job.engine)
            return OnnxModel(own_job, session, names, on_cpu=self.provider == CPU)

    def _session(
        self, content: bytes, engine: messages.Engine = messages.DEFAULT_ENGINE, profile: str | None = None
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
        providers = [(self.provider, PROVIDER_OPTIONS.get(self.provider, {}))]
        with base.translated("ONNX Runtime", "load"):
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
            raise messages.AgentError(f"--provider: {self.provider} does not run on this device: {error}") from error
        if not np.array_equal(product, np.full((16, 16), 16, np.float32)):
            raise messages.AgentError(f"--provider: {self.provider} computes a wrong matrix product on this device")


class OnnxModel(base.Model):
    """One inference session; `open_session` opens further sessions, profiled if given the prefix of the profile's file."""

    runtime = "ONNX Runtime"

    def __init__(
        self,
        job: messages.JobMessage,
        open_session: Callable[..., onnxruntime.InferenceSession],
        names: SanitizedNames,
        *,
        on_cpu: bool,
    ) -> None:
        self.on_cpu = on_cpu
        self._open_session = open_session
        self._session = session = open_session()
        types = {node.name: node.type for node in session.get_inputs()}
        if foreign := [kind for kind in types.values() if kind not in TYPES]:
            raise base.ModelError(f"inputs: type {foreign[0]}; allowed: {', '.join(TYPES)}")
        super().__init__(job, {name: np.dtype(TYPES[kind]) for name, kind in types.items()}, names)

    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs n times with inputs and outputs bound once."""
        self._outputs(inputs)
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

    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[messages.LayerTiming]:
        """The runtime's own profile of each of its nodes, from a separate session."""
        feeds = dict(zip(self._job.input_names, inputs, strict=True))
        once = len(self._profile(feeds, iter([None])))
        most = max(base.LEAST_RUNS, MOST_EVENTS // max(once, 1))
        events = self._profile(feeds, runs.each(base.LEAST_RUNS, most))
        durations_us: dict[str, list[int]] = {}
        kinds: dict[str, str] = {}
        for event in events:
            name = event["name"].removesuffix(NODE_EVENT)
            durations_us.setdefault(name, []).append(event["dur"])
            kinds[name] = event["args"]["op_name"]
        return [
            messages.LayerTiming(
                name=name, kind=kinds[name], time_ms=float(base.interquartile_mean(np.array(runs.kept(samples))) * 1e-3)
            )
            for name, samples in durations_us.items()
        ]

    def _profile(self, feeds: dict[str, np.ndarray], runs: Iterator[None]) -> list[dict[str, Any]]:
        """The events of nodes over these runs, without the warm-up run before them."""
        session = self._open_session(profile=PROFILE_PREFIX)
        try:
            session.run(None, feeds)
            for _ in runs:
                session.run(None, feeds)
        finally:
            file = Path(session.end_profiling())
        try:
            events = [event for event in json.loads(file.read_bytes()) if event["name"].endswith(NODE_EVENT)]
        except ValueError as error:
            raise base.ModelError("its profile is larger than a file may be here") from error
        finally:
            file.unlink()
        nodes = len({event["name"] for event in events})
        return events[nodes:]

    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        feeds = dict(zip(self._job.input_names, inputs, strict=True))
        outputs: list[np.ndarray] = self._session.run(list(self._job.output_names), feeds)
        if not all(isinstance(output, np.ndarray) for output in outputs):
            raise base.ModelError("outputs: not all of them are tensors")
        return outputs

    def close(self) -> None:
        """Free the session."""
        del self._session
