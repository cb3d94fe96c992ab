"""The files of one SubNet in each format, each with a function that runs it for the check.

ONNX files have nodes in the order of least peak memory, if that saves memory. Such a file is optimised for the
processor of this machine, and is run with the session options of its card.
"""

import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import nn

from adaptive_runtime.samples.inputs import unpacked
from profiling_agents.client import AgentClient, ModelJob, local_agent
from profiling_agents.messages import MIB, Capabilities, Format, Precision
from profiling_agents.sensing.sensors import cpu_model
from profiling_agents.startup import python_path
from tailor_ir import Config, Statistics, SuperNet
from tailor_ir.memory.planned_file import PlannedFile, plan_file, session_options
from tasks.base.errors import shortened
from tasks.base.progress import Progress
from tasks.base.schemas.exports import Card, FileRun, Int8File, Latency, PlannedMemory
from tasks.base.schemas.placed import OWN_CHOICES, ChosenImplementations
from tasks.data.batches import Inputs, answers, concatenated, each, rows, samples_in, tensors
from tasks.data.source import arrays
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.conversion import ConversionError, ConversionLimits, onnx_of, run_limited
from tasks.evaluation.executorch.programs import subnet_jobs
from tasks.evaluation.ncnn.conversion import convert
from tasks.evaluation.ncnn.files import masks_of
from tasks.evaluation.quantise import QuantisedSubNet, quantise
from tasks.evaluation.subnets import EvaluationData
from tasks.export.adapted import Adapted, own_tensors
from tasks.export.onnx_files import ARCHIVE_FILE, BATCHES, as_given, dynamic_batch, fact_file, in_half, tell
from tasks.export.running import INPUT, archive_run, file_tensor, run_of
from tasks.export.settings import FileFormat, Settings
from tasks.measuring.jobs import ncnn_job, onnx_job
from tasks.measuring.subnets import SubNetMeter, implementations_of

LOCAL_RUNTIME: dict[Format, str] = {"onnx": "onnxruntime", "ncnn": "ncnn", "executorch": "executorch"}
SUFFIXES: dict[FileFormat, tuple[str, ...]] = {
    "onnx": (".onnx",),
    "onnx_int8": (".int8.onnx",),
    "ncnn": (".ncnn.param", ".ncnn.bin", ".ncnn.json"),
    "ncnn_fp16": (".fp16.ncnn.param", ".fp16.ncnn.bin", ".fp16.ncnn.json"),
    "torch": (".pt2",),
    "executorch": (".pte", ".pte.json"),
}

Images = NDArray[Any]
"""Samples (N, …) of one input, or several inputs packed (`adaptive_runtime.samples.inputs`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Contents of the files of one format, their precision, and how they are run: by `runtime`, on the device or here.

    int8: for a quantised file; `reference` computes the values to compare its outputs with. run: how it runs; None: unknown.
    memory: for an ONNX file for which another order was planned.
    """

    contents: tuple[bytes, ...]
    precision: Precision
    runtime: str
    on_device: bool
    outputs: Callable[[Images], Images]
    int8: Int8File | None = None
    reference: Callable[[Images], Images] | None = None
    memory: PlannedMemory | None = None
    run: FileRun | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Makes the files of SubNets; local runtimes start on first use and end with `agents`.

    data: split -> images, for calibration and evaluation of int8 files. formats: those of the settings, and on an int8 device
    the int8 format. adapted: SubNets whose files are made in adapted form.
    """

    settings: Settings
    net: SuperNet
    client: AgentClient
    agents: ExitStack
    data: Mapping[str, EvaluationData]
    progress: Progress
    implementations: ChosenImplementations = OWN_CHOICES
    adapted: Adapted = field(default_factory=dict)
    _local: dict[Format, AgentClient] = field(default_factory=dict)
    _quantised: dict[str, QuantisedSubNet] = field(default_factory=dict)

    @property
    def in_int8(self) -> bool:
        """Whether the device runs the int8 file."""
        return self.client.capabilities().precision == "int8"

    @property
    def formats(self) -> tuple[FileFormat, ...]:
        """The formats in the order in which files are made."""
        asked = self.settings.formats
        return ("onnx_int8", *(one for one in asked if one != "onnx_int8")) if self.in_int8 else asked

    def tensors(self, config: Config) -> Statistics:
        """The tensors of a SubNet that are not shared weights, including BatchNorm statistics."""
        return own_tensors(self.net, config, next(iter(self.data.values())), self.adapted)

    def make(self, name: FileFormat, card: Card, statistics: Statistics, module: nn.Module) -> Made:
        """The files of one format, with the facts of the card. ConversionError if there are none."""
        match name:
            case "onnx":
                model, in_fp16 = self._onnx(card.config, statistics), self._weights_in_fp16
                jobs = self._onnx_jobs(card, in_half(model) if in_fp16 else model)
                return self._run_by_agent(jobs, "fp16" if in_fp16 else None)
            case "onnx_int8":
                return self._int8(card, statistics)
            case "torch":
                return self._torch(card, module)
            case "executorch":
                subnet = {card.digest: (self.net, card.config)}
                job = subnet_jobs(subnet, self.settings.limits, statistics)[card.digest]
                if isinstance(job, ConversionError):
                    raise job
                made = self._run_by_agent([job])
                return replace(made, contents=(*made.contents, fact_file(card)))
            case "ncnn" | "ncnn_fp16":
                fp16 = name == "ncnn_fp16"
                model = onnx_of(self.net, card.config, statistics, 1)
                names = implementations_of(self.net, card.config, self.implementations)
                files = convert(model, self.settings.limits, fp16=fp16, implementations=names)
                job = ncnn_job(card.digest, model, files)
                made = self._run_by_agent([job], "fp16" if fp16 else None)
                run = made.run and made.run.model_copy(update={"masks": masks_of(files)})
                return replace(made, contents=(*made.contents, fact_file(card)), run=run)

    @property
    def _weights_in_fp16(self) -> bool:
        """Whether ONNX files store weights in fp16, as the given network does; those of a bundle are shared."""
        return self.net.structure.graph.given_weights == "float16" and not self.settings.bundle

    def _onnx(self, config: Config, statistics: Statistics) -> bytes:
        if not self.settings.dynamic_batch:
            return onnx_of(self.net, config, statistics)
        return dynamic_batch([onnx_of(self.net, config, statistics, batch) for batch in BATCHES])

    def _onnx_jobs(self, card: Card, model: bytes) -> list[ModelJob]:
        """The model with inputs and outputs as in the given file, and with the facts of the card, for each checked batch.

        Beside a bundle it keeps the SuperNet's own: the files of a bundle take the same arrays.
        """
        sizes = sorted({1, self.settings.check_images}) if self.settings.dynamic_batch else [self.net.batch]
        content = tell(as_given(model, () if self.settings.bundle else self.net.structure.graph.given_values), card)
        return [onnx_job(card.digest, content, batch) for batch in sizes]

    def quantised(self, config: Config) -> QuantisedSubNet:
        """A SubNet in int8, made once. ConversionError if it has no such file."""
        digest = self.net.space.digest(config)
        if digest not in self._quantised:
            statistics = self.tensors(config)
            exact = self._onnx(config, statistics)
            settings, data = self.settings.quantise, self.data
            self._quantised[digest] = quantise(self.net, config, statistics, exact, settings, data, self.progress)
        found = self._quantised[digest]
        if len(found.kept) == len(found.layers):
            most = self.settings.quantise.max_loss_points
            raise ConversionError(f"int8 loses more than {most:g} points with any layer in int8")
        return found

    def _int8(self, card: Card, statistics: Statistics) -> Made:
        exact, found = self._onnx(card.config, statistics), self.quantised(card.config)
        record = self._beside_fp32(found, exact, card)
        of_int8 = {"accuracy": found.accuracy, **({"latency": record.latency} if record.latency else {})}
        jobs = self._onnx_jobs(card.model_copy(update=of_int8), found.content)
        local = OnnxNetwork(found.content)
        return replace(
            self._run_by_agent(jobs),
            precision="int8",
            int8=record,
            reference=lambda images: side_by_side(
                [one.numpy() for one in tensors(local(*map(torch.from_numpy, unpacked(images))))]
            ),
        )

    def _beside_fp32(self, found: QuantisedSubNet, exact: bytes, card: Card) -> Int8File:
        """Sizes, accuracies, and, if the device takes ONNX files, latencies."""
        timed: dict[str, Any] = {}
        if "onnx" in self.client.capabilities().formats:
            jobs = [onnx_job(name, model, self.net.batch) for name, model in (("fp32", exact), ("int8", found.content))]
            fp32, int8 = SubNetMeter(self.net, self.client, self.settings.measure, self.settings.limits).time(jobs)
            timed = {"fp32_ms": fp32.p50_ms, "latency": Latency.model_validate(int8.model_dump(exclude={"key"}))}
        return Int8File(
            accuracy=found.accuracy,
            lost_points=found.lost_points,
            allowed_points=self.settings.quantise.max_loss_points,
            layers=len(found.layers),
            kept_fp32=found.kept,
            calibration_images=found.images,
            fp32_bytes=len(tell(exact, card)),
            **timed,
        )

    def _run_by_agent(self, jobs: list[ModelJob], stored: Precision | None = None) -> Made:
        """A file that the device runs if it takes the format, else an agent on this machine. jobs: for several batches."""
        client = self.runtime(jobs[0].format)
        found = client.capabilities()
        computes: Precision = "fp32" if found.precision == "int8" else found.precision  # the file is not quantised
        run = run_of(found, jobs[0]).model_copy(update={"precision": computes})
        return Made(
            contents=jobs[0].files,
            precision=computes if stored is None or computes != "fp32" else stored,
            runtime=found.backend,
            on_device=client is self.client,
            outputs=lambda images: np.concatenate([_outputs(client, job, images, run) for job in jobs]),
            run=run,
        )

    def runtime(self, model_format: Format) -> AgentClient:
        """The device if it takes the format, else an agent on this machine."""
        if model_format in self.client.capabilities().formats:
            return self.client
        if model_format not in self._local:
            agent = local_agent(backend=LOCAL_RUNTIME[model_format])
            self._local[model_format] = self.agents.enter_context(agent)
        return self._local[model_format]

    def _torch(self, card: Card, module: nn.Module) -> Made:
        batch, shapes = self.net.batch, None
        if self.settings.dynamic_batch:
            batch, shapes = BATCHES[0], ({0: torch.export.Dim.DYNAMIC},) * len(self.net.structure.graph.inputs)
        example = tuple(map(torch.from_numpy, self.net.sample_inputs(card.config, np.random.default_rng(0), batch)))
        content = io.BytesIO()
        try:
            exported = torch.export.export(module, example, dynamic_shapes=shapes)
            torch.export.save(exported, content, extra_files={ARCHIVE_FILE: fact_file(card).decode()})
            loaded = torch.export.load(io.BytesIO(content.getvalue())).module()
        except Exception as error:  # torch.export raises errors of many kinds
            raise ConversionError(f"torch.export: {str(error).splitlines()[0]}") from error
        sizes = sorted({1, self.settings.check_images}) if shapes else [batch]

        def run(inputs: Sequence[Images]) -> tuple[torch.Tensor, ...]:
            return tensors(loaded(*map(torch.from_numpy, inputs)))

        @torch.inference_mode()
        def outputs(images: Images) -> Images:
            return np.concatenate(
                [
                    in_batches(images, size, lambda x: side_by_side(list(map(torch.Tensor.numpy, run(unpacked(x))))))
                    for size in sizes
                ]
            )

        samples = None if shapes else batch
        names = self.net.structure.graph.inputs if len(example) > 1 else (INPUT,)
        inputs = [
            file_tensor(name, (samples, *one.shape[1:]), one.numpy().dtype.name)
            for name, one in zip(names, example, strict=True)
        ]
        return Made(
            contents=(content.getvalue(),),
            precision="fp32",
            runtime="torch",
            on_device=False,
            outputs=outputs,
            run=archive_run(inputs, [(samples, *one.shape[1:]) for one in tensors(module(*example))]),
        )


def references(
    net: SuperNet, module: Callable[..., torch.Tensor], config: Config, images: EvaluationData, count: int
) -> tuple[Images, Images]:
    """Real samples as images (N, C, H, W), `count` if there are so many, and torch's outputs for them.

    They are rounded to the types of the given file's inputs: scaled pixels are no whole numbers.
    """
    some: list[Inputs] = []
    for batch, _ in images.batches(net.input_size(config)):
        some.append(batch)
        if sum(map(samples_in, some)) >= count:
            break
    x = rows(concatenated(some), 0, count)
    given, names = dict(net.structure.graph.given_values), iter(net.structure.graph.inputs)
    x = each(x, lambda one: _rounded(one, given.get(next(names), "")))
    with torch.inference_mode():
        found = tensors(answers(module, x))
        return arrays(x, net.structure.graph.inputs), side_by_side([one.cpu().numpy() for one in found])


def _rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Real numbers as another type can hold them, in their own type; "": any."""
    return x.to(getattr(torch, kind)).to(x.dtype) if kind and x.is_floating_point() else x


def side_by_side(outputs: Sequence[Images]) -> Images:
    """All outputs of a network as one array, to compare them; a single output as it is."""
    if len(outputs) == 1:
        return outputs[0]
    return np.concatenate([one.reshape(len(one), -1) for one in outputs], axis=1)


def _outputs(client: AgentClient, job: ModelJob, images: Images, run: FileRun) -> Images:
    def answers_to(x: Images) -> Images:
        return side_by_side(client.run(job, in_types_of(run, x)))

    return in_batches(images, job.input_shapes[0][0], answers_to)


def in_types_of(run: FileRun, samples: Images) -> list[Images]:
    """A batch of each input, in the types that the file takes."""
    return [one.astype(given.type, copy=False) for one, given in zip(unpacked(samples), run.inputs, strict=True)]


def in_batches(images: Images, batch: int, run: Callable[[Images], Images]) -> Images:
    """Outputs for all images, in batches; the last batch is padded with its last image."""
    parts = []
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        filled = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
        parts.append(run(filled)[: len(part)])
    return np.concatenate(parts)


SESSION_OPTIONS: dict[str, bool | str] = {
    "graph_optimization_level": "ORT_DISABLE_ALL",
    "execution_order": "PRIORITY_BASED",
    "enable_mem_reuse": False,
}
"""The options of `session_options`, in the words of onnxruntime's Python API."""
FILES = "default.onnx", "planned.onnx", "input.npy", "counted.json"


def in_planned_order(
    net: SuperNet, card: Card, made: Made, images: Images, device: Capabilities, limits: ConversionLimits
) -> Made:
    """The ONNX file in planned order if that saves memory, as counted on this machine; else the same file and the reason."""
    try:
        return _planned(net, card, made, images, device, limits)
    except ConversionError as error:
        return replace(made, memory=PlannedMemory(kept=False, reason=str(error)))


def _planned(
    net: SuperNet, card: Card, made: Made, images: Images, device: Capabilities, limits: ConversionLimits
) -> Made:
    if device.cpu_model != cpu_model():
        raise ConversionError(f"it would be optimised for {cpu_model()}; the device has {device.cpu_model}")
    model = onnx.load_model_from_string(made.contents[0])
    assert made.run is not None
    run = made.run
    (images,) = in_types_of(run, images)
    x_BCHW = np.resize(images, net.input_shape(card.config)).astype(images.dtype)
    name = model.graph.input[0].name
    try:
        plan = plan_file(model, {name: x_BCHW})
    except Exception as error:
        raise ConversionError(f"onnxruntime does not plan it: {shortened(error)}") from error
    content = tell(plan.model.SerializeToString(), card)
    memory = _counted(
        made.contents[0], content, x_BCHW, plan, net.peak_activation_bytes(card.config) * net.batch, limits
    )
    if not memory.kept:
        return replace(made, memory=memory)
    session = onnxruntime.InferenceSession(content, session_options(), providers=["CPUExecutionProvider"])

    def outputs(some: Images) -> Images:
        return in_batches(some, net.batch, lambda x: side_by_side(session.run(None, {name: in_types_of(run, x)[0]})))

    return replace(
        made,
        contents=(content,),
        precision="fp16" if made.precision == "fp16" and net.structure.graph.given_weights else "fp32",
        runtime="onnxruntime",
        on_device=False,
        outputs=outputs,
        memory=memory,
    )


def _counted(
    default: bytes, planned: bytes, x_BCHW: Images, plan: PlannedFile, default_bytes: int, limits: ConversionLimits
) -> PlannedMemory:
    """Memory and time of both files. default_bytes: the predicted peak of the default order."""
    with tempfile.TemporaryDirectory(prefix="autotailor-planned-") as name:
        folder = Path(name)
        (folder / FILES[0]).write_bytes(default)
        (folder / FILES[1]).write_bytes(planned)
        np.save(folder / FILES[2], x_BCHW)
        command = [sys.executable, "-P", "-m", "tasks.export.counting", *FILES]
        environment = os.environ | {"PYTHONPATH": python_path(os.environ), "OMP_NUM_THREADS": "1"}
        run_limited(command, folder, limits, environment, name="counting memory")
        found: dict[str, Any] = json.loads((folder / FILES[3]).read_text())
    (default_peak, planned_peak), (default_ms, planned_ms) = found["peaks"], found["times_ms"]
    kept = planned_peak < default_peak
    return PlannedMemory(
        kept=kept,
        reason=None if kept else "the planned order saves no memory",
        planned_mib=plan.schedule.peak_bytes / MIB,
        default_mib=default_bytes / MIB,
        planned_counted_mib=planned_peak / MIB,
        default_counted_mib=default_peak / MIB,
        planned_ms=planned_ms,
        default_ms=default_ms,
        optimal=plan.schedule.optimal,
        session_options=SESSION_OPTIONS if kept else {},
    )
