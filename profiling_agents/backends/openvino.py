"""OpenVINO on the CPU, from ONNX files: its models, the times of its layers, and the precisions that it supports.

`importing`, imported first, keeps OpenVINO from reporting each import to its vendor. Models run in one stream, tuned
for latency, with a fixed number of threads. The calling thread is one of the threads that compute. OpenVINO binds none
of them, so they stay on the cores to which the agent is bound. The precision is always stated: by default, OpenVINO
takes bf16 if the processor has it. Quantised layers run in int8 wherever the processor can; the other layers of such a
model run in fp32.

Times come from the counters of a profiled model. A counter holds the mean of a layer over all runs up to now, in whole
µs, and each run adds whole µs to its sum; both are rounded down. A layer's time in one run is the difference between
its sums after and before the run. After n runs it is known to ± n µs; over many runs these errors cancel. Runs in which
the layer was interrupted stand out and are left out.

OpenVINO accepts a hint for every precision everywhere, and computes in fp32 if the processor lacks the precision. A
precision counts as supported when the outputs of a small model differ from fp32 by rounding. int8 has no hint: the
compiled probe reports it.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import openvino
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from profiling_agents.backends import base
from profiling_agents.backends.onnx_files import input_types, opened
from profiling_agents.backends.sanitized_names import OWN, SanitizedNames
from profiling_agents.messages import AgentError, EngineOption, JobMessage, LayerTiming, Precision, RuntimeSettings
from profiling_agents.sensing.machine import Runs

ORIGINAL_NAMES = "originalLayersNames"
LOST_US = 0.5  # on average, by rounding down
NOTHING_RUNS = ("undef", "unknown", "reorder")
"""Prefixes of the implementations of layers that are fused into others or leave their tensor in place."""


def time_layers(
    model: openvino.CompiledModel,
    request: openvino.InferRequest,
    run: Callable[[], object],
    inputs: Sequence[str],
    runs: Runs,
) -> list[LayerTiming]:
    """The layers that ran, in the order of execution. run: runs the request. inputs: names of the model's inputs."""
    run()
    counters_us = [_counters_us(request)]
    for _ in runs.each(base.LEAST_RUNS):
        run()
        counters_us.append(_counters_us(request))
    rows_us, errors_us = times_of_runs_us(np.array(counters_us))
    kept_rows_us, kept_errors_us = zip(*runs.kept(list(zip(rows_us, errors_us, strict=True))), strict=True)
    times_ms = mean_times_us(np.array(kept_rows_us), np.array(kept_errors_us)) * 1e-3
    names = _Names(model, inputs)
    return [
        LayerTiming(name=names.of(info.node_name), kind=info.node_type, time_ms=float(time_ms))
        for info, time_ms in zip(request.get_profiling_info(), times_ms, strict=True)
        if info.real_time or not info.exec_type.startswith(NOTHING_RUNS)
    ]


def _counters_us(request: openvino.InferRequest) -> list[int]:
    """The counter of each layer [µs]."""
    return [round(info.real_time.total_seconds() * 1e6) for info in request.get_profiling_info()]


def times_of_runs_us(counters_us: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Times of each layer in each run after the first, and their largest errors, both (runs, layers) [µs].

    counters_us: counters after each run (runs + 1, layers).
    """
    runs = np.arange(1, len(counters_us) + 1)[:, np.newaxis]
    sums_us = np.where(counters_us > 0, counters_us * runs + LOST_US * (runs - 1), 0.0)
    rows_us = np.diff(sums_us, axis=0)
    return rows_us, np.broadcast_to(runs[1:], rows_us.shape).astype(np.float64)


def mean_times_us(rows_us: NDArray[np.float64], errors_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean times (layers,) over the runs in which the layer was not interrupted [µs]."""
    means_us: NDArray[np.float64] = base.uninterrupted_mean(rows_us, errors_us).clip(min=0.0) + LOST_US
    return means_us


class _Names:
    """Names of layers, each starting with the name of a node of the file.

    OpenVINO splits a node of the file into several and names the last of them after it; the names of the others mean nothing.
    Nodes that it inserts behind an input are named after the input. Both belong to the next node that has a name.
    """

    def __init__(self, model: openvino.CompiledModel, inputs: Sequence[str]) -> None:
        self._inputs = frozenset(inputs)
        self._nodes = {node.get_friendly_name(): node for node in model.get_runtime_model().get_ordered_ops()}

    def of(self, layer: str) -> str:
        """The layer's name, prefixed with the name of its node unless it already starts with it."""
        waiting, seen = [layer], {layer}
        while waiting:
            name = waiting.pop(0)
            if (own := self._own(name)) is not None:
                return layer if name == layer and own == layer else f"{own}/{layer}"
            behind = [reader for reader in self._readers(name) if reader not in seen]
            waiting += behind
            seen.update(behind)
        return layer

    def _own(self, name: str) -> str | None:
        """The first of a layer's names that starts with the name of a node of the file."""
        node = self._nodes.get(name)
        originals = [] if node is None else str(node.get_rt_info()[ORIGINAL_NAMES].value).split(",")
        known = ((one, OWN.match(one)) for one in (name, *originals))
        return next((one for one, match in known if match is not None and match[0] not in self._inputs), None)

    def _readers(self, name: str) -> list[str]:
        node = self._nodes.get(name)
        if node is None:
            return []
        targets = (target for output in node.outputs() for target in output.get_target_inputs())
        return [target.get_node().get_friendly_name() for target in targets]


PRECISIONS: Mapping[Precision, str] = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""OpenVINO's names of the precisions that are set by a hint."""
EIGHT_BITS = ("i8", "u8")
CHANNELS, SIZE = 32, 16


def probe_model() -> onnx.ModelProto:
    """A 3x3 convolution and a matrix product, each with its own input and fixed random weights."""
    rng = np.random.default_rng(0)
    weights = {"w0": (CHANNELS, CHANNELS, 3, 3), "w1": (CHANNELS, CHANNELS)}
    nodes = [helper.make_node("Conv", ["in0", "w0"], ["out0"]), helper.make_node("MatMul", ["in1", "w1"], ["out1"])]
    inputs = [
        helper.make_tensor_value_info(f"in{i}", TensorProto.FLOAT, array.shape)
        for i, array in enumerate(probe_inputs())
    ]
    outputs = [helper.make_tensor_value_info(f"out{i}", TensorProto.FLOAT, None) for i in range(len(inputs))]
    tensors = [
        numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name) for name, shape in weights.items()
    ]
    graph = helper.make_graph(nodes, "probe", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def int8_model() -> onnx.ModelProto:
    """The probe's convolution with its input and its weights in int8."""
    tensor = helper.make_tensor_value_info
    weights = np.random.default_rng(0).integers(-127, 128, (CHANNELS, CHANNELS, 3, 3), np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["in0", "scale", "zero"], ["quantised"]),
        helper.make_node("DequantizeLinear", ["quantised", "scale", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["weights", "scale"], ["w"]),
        helper.make_node("Conv", ["x", "w"], ["out0"]),
    ]
    tensors = {"scale": np.float32(0.02), "zero": np.uint8(128), "weights": weights}
    graph = helper.make_graph(
        nodes,
        "probe",
        [tensor("in0", TensorProto.FLOAT, probe_inputs()[0].shape)],
        [tensor("out0", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(one), name) for name, one in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def runs_in_int8(compiled: openvino.CompiledModel) -> bool:
    """Whether a convolution of a compiled model computes in 8 bits."""
    nodes = compiled.get_runtime_model().get_ordered_ops()
    facts = (node.get_rt_info() for node in nodes if node.get_type_name() != "Result")
    return any(
        str(one["layerType"].value) == "Convolution" and str(one["runtimePrecision"].value) in EIGHT_BITS
        for one in facts
    )


def probe_inputs() -> list[np.ndarray]:
    """Fixed random inputs of the probe."""
    rng = np.random.default_rng(1)
    shapes = ((1, CHANNELS, SIZE, SIZE), (SIZE, CHANNELS))
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


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
    base.switch("hyper_threading", "Two threads may share a core that can run two.", {"ENABLE_HYPER_THREADING": False}),
)


def engine_options(threads: int) -> tuple[EngineOption, ...]:
    """The options that can matter: options of threads only if there are several."""
    if threads == 1:
        return EVERYWHERE
    counts = base.powers_of_two(threads)
    does = "Independent groups of threads, of which one computes a sample; the threads are divided among them."
    sets: dict[str, RuntimeSettings] = {count: {"NUM_STREAMS": int(count)} for count in counts[1:]}
    streams = EngineOption(name="streams", choices=counts, default="1", does=does, sets=sets)
    return (*EVERYWHERE, *ON_CORES, *base.thread_option(threads, "INFERENCE_NUM_THREADS"), streams)


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


class OpenVinoBackend(base.Backend):
    """OpenVINO in one precision with a fixed number of threads."""

    name = "openvino"
    formats = ("onnx",)

    def __init__(self, options: base.RuntimeOptions) -> None:
        base.require_cpu(options)
        self._core = openvino.Core()
        self._core.set_property({"CACHE_DIR": ""})
        self.precision = options.precision
        self.precisions = self._probe(options.threads)
        if self.precision not in self.precisions:
            raise AgentError(
                f"--precision: got {self.precision}, which OpenVINO {_version()} does not compute in on this processor; "
                f"allowed: {', '.join(self.precisions)}"
            )
        self.settings = compile_settings(options.threads, options.precision)
        self.engine_options = engine_options(options.threads)

    def version_and_build(self) -> tuple[str, str]:
        """Version; the hash of the library that computes, and its build number."""
        plugin = self._core.get_versions("CPU")["CPU"]
        (library,) = (Path(openvino.__file__).parent / "libs").glob(f"*{plugin.description}*")
        return _version(), f"{base.library_hash(library)} {plugin.build_number}"

    def load(self, files: Sequence[Path], job: JobMessage) -> base.Model:
        """Parse, refuse external data, and compile; ModelError when OpenVINO refuses the model."""
        with opened(files[0], job) as (file, own_job, names):
            types = input_types(file)
            with base.translated("OpenVINO", "load"):
                model = self._core.read_model(file.SerializeToString())
                if model.is_dynamic():
                    model.reshape(dict(zip(own_job.input_names, own_job.input_shapes, strict=True)))
                settings = job.engine.applied(self.settings, self.engine_options)
                return OpenVinoModel(own_job, types, names, partial(self._compiled, model, settings))

    def _compiled(
        self, model: openvino.Model, settings: RuntimeSettings, *, profiled: bool = False
    ) -> openvino.CompiledModel:
        return self._core.compile_model(model, "CPU", {**settings, "PERF_COUNT": profiled})

    def _probe(self, threads: int) -> tuple[Precision, ...]:
        """The precisions in which this processor computes, fp32 first. AgentError unless OpenVINO takes the number of threads.

        The probe runs once here, so that the libraries map their memory before memory is limited.
        """
        model = self._core.read_model(probe_model().SerializeToString())
        inputs = probe_inputs()
        outputs: dict[Precision, list[np.ndarray]] = {}
        for precision in PRECISIONS:
            compiled = self._compiled(model, compile_settings(threads, precision))
            if (taken := compiled.get_property("INFERENCE_NUM_THREADS")) != threads:
                raise AgentError(f"--threads: got {threads}; OpenVINO takes {taken} on the cores that it may use")
            results = compiled.create_infer_request().infer(inputs)
            outputs[precision] = [results[index] for index in range(len(results))]
        quantised = self._core.read_model(int8_model().SerializeToString())
        in_int8 = runs_in_int8(self._compiled(quantised, compile_settings(threads, "int8")))
        return (*base.rounded_precisions(outputs), *(("int8",) if in_int8 else ()))


class OpenVinoModel(base.Model):
    """One compiled model; `compiled` compiles further ones, for example to time layers."""

    runtime = "OpenVINO"

    def __init__(
        self,
        job: JobMessage,
        types: Mapping[str, np.dtype],
        names: SanitizedNames,
        compiled: Callable[..., openvino.CompiledModel],
    ) -> None:
        super().__init__(job, types, names)
        self._compiled = compiled
        self._request = compiled().create_infer_request()

    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs n times with inputs bound once; outputs stay where OpenVINO writes them."""
        infer = self._bound(self._request, inputs)
        infer()
        return base.repeater_of(infer)

    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """OpenVINO's own counters of each layer, from a separate compiled model."""
        compiled = self._compiled(profiled=True)
        request = compiled.create_infer_request()
        return time_layers(compiled, request, self._bound(request, inputs), self._job.input_names, runs)

    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        self._bound(self._request, inputs)()
        return [np.array(self._request.get_tensor(name).data) for name in self._job.output_names]

    def close(self) -> None:
        """Free the compiled model."""
        del self._request, self._compiled

    def _bound(self, request: openvino.InferRequest, inputs: Sequence[np.ndarray]) -> Callable[[], object]:
        """A function that runs the request once on copies of these inputs."""
        for name, array in zip(self._job.input_names, inputs, strict=True):
            request.set_tensor(name, openvino.Tensor(array))
        return partial(request.infer, share_outputs=True)


def _version() -> str:
    return str(openvino.__version__).split("-")[0]
