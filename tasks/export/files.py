"""The files of one SubNet in each format, each with a function that runs it for the check."""

import io
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from profiling_agents.client import AgentClient, ModelJob, local_agent
from profiling_agents.messages import Format, Precision
from tailor_ir import Config, SuperNet
from tasks.evaluation.subnets import EvaluationData
from tasks.export.dynamic import BATCHES, dynamic_batch
from tasks.export.facts import ARCHIVE_FILE, fact_file, tell
from tasks.export.settings import FileFormat, Settings
from tasks.measuring.jobs import ncnn_job, onnx_job
from tasks.measuring.subnets import Statistics, implementations_of, onnx_of
from tasks.ncnn.conversion import ConversionError, convert
from tasks.ncnn.kernels import masks_of
from tasks.schemas.exports import Card
from tasks.schemas.operators import OWN_CHOICES, ChosenImplementations

LOCAL_RUNTIME: dict[Format, str] = {"onnx": "onnxruntime", "ncnn": "ncnn"}
SUFFIXES: dict[FileFormat, tuple[str, ...]] = {
    "onnx": (".onnx",),
    "ncnn": (".ncnn.param", ".ncnn.bin", ".ncnn.json"),
    "ncnn_fp16": (".fp16.ncnn.param", ".fp16.ncnn.bin", ".fp16.ncnn.json"),
    "torch": (".pt2",),
}

Images = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Contents of the files of one format, their precision, and what computes with them: `runtime`, on the device or here.

    masks: of the layers of an ncnn file.
    """

    contents: tuple[bytes, ...]
    precision: Precision
    runtime: str
    on_device: bool
    outputs: Callable[[Images], Images]
    masks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes the files of SubNets; local runtimes are started at first need and end with `agents`."""

    settings: Settings
    net: SuperNet
    client: AgentClient
    agents: ExitStack
    implementations: ChosenImplementations = OWN_CHOICES
    _local: dict[Format, AgentClient] = field(default_factory=dict)

    def make(self, name: FileFormat, card: Card, statistics: Statistics, module: nn.Module) -> Made:
        """The files of one format, which tell what the card tells. ConversionError where there are none."""
        match name:
            case "onnx":
                return self._onnx(card, statistics)
            case "torch":
                return self._torch(card, module)
            case "ncnn" | "ncnn_fp16":
                fp16 = name == "ncnn_fp16"
                model = onnx_of(self.net, card.config, statistics, 1)
                names = implementations_of(self.net, card.config, self.implementations)
                files = convert(model, self.settings.limits, fp16=fp16, implementations=names)
                job = ncnn_job(card.digest, model, files)
                made = self._run_by_agent([job], "fp16" if fp16 else None)
                return replace(made, contents=(*made.contents, fact_file(card)), masks=masks_of(files))

    def _onnx(self, card: Card, statistics: Statistics) -> Made:
        if not self.settings.dynamic_batch:
            model = tell(onnx_of(self.net, card.config, statistics), card)
            return self._run_by_agent([onnx_job(card.digest, model)])
        model = tell(dynamic_batch([onnx_of(self.net, card.config, statistics, batch) for batch in BATCHES]), card)
        sizes = sorted({1, self.settings.check_images})
        return self._run_by_agent([onnx_job(card.digest, model, batch) for batch in sizes])

    def _run_by_agent(self, jobs: list[ModelJob], stored: Precision | None = None) -> Made:
        """A file that the device runs, if it takes the format, else an agent on this machine. jobs: of several batches."""
        client = self._runtime(jobs[0].format)
        found = client.capabilities()
        return Made(
            contents=jobs[0].files,
            precision=found.precision if stored is None or found.precision != "fp32" else stored,
            runtime=found.backend,
            on_device=client is self.client,
            outputs=lambda images: np.concatenate([_outputs(client, job, images) for job in jobs]),
        )

    def _runtime(self, model_format: Format) -> AgentClient:
        if model_format in self.client.capabilities().formats:
            return self.client
        if model_format not in self._local:
            agent = local_agent(backend=LOCAL_RUNTIME[model_format])
            self._local[model_format] = self.agents.enter_context(agent)
        return self._local[model_format]

    def _torch(self, card: Card, module: nn.Module) -> Made:
        batch, shapes = self.net.batch, None
        if self.settings.dynamic_batch:
            batch, shapes = BATCHES[0], ({0: torch.export.Dim.DYNAMIC},)
        example = torch.zeros(self.net.input_shape(card.config, batch))
        content = io.BytesIO()
        try:
            exported = torch.export.export(module, (example,), dynamic_shapes=shapes)
            torch.export.save(exported, content, extra_files={ARCHIVE_FILE: fact_file(card).decode()})
            loaded = torch.export.load(io.BytesIO(content.getvalue())).module()
        except Exception as error:  # of many kinds, none of them ours
            raise ConversionError(f"torch.export: {str(error).splitlines()[0]}") from error
        sizes = sorted({1, self.settings.check_images}) if shapes else [batch]

        @torch.inference_mode()
        def outputs(images: Images) -> Images:
            return np.concatenate(
                [in_batches(images, size, lambda x: loaded(torch.from_numpy(x)).numpy()) for size in sizes]
            )

        return Made(contents=(content.getvalue(),), precision="fp32", runtime="torch", on_device=False, outputs=outputs)


def references(
    net: SuperNet, module: nn.Module, config: Config, images: EvaluationData, count: int
) -> tuple[Images, Images]:
    """So many real images (N, C, H, W), and torch's outputs for them."""
    height, width = net.input_shape(dict(config))[-2:]
    some: list[torch.Tensor] = []
    for batch, _ in images.batches((height, width)):
        some.append(batch)
        if sum(map(len, some)) >= count:
            break
    x_BCHW = torch.cat(some)[:count]
    with torch.inference_mode():
        return x_BCHW.cpu().numpy(), module(x_BCHW).cpu().numpy()


def _outputs(client: AgentClient, job: ModelJob, images: Images) -> Images:
    return in_batches(images, job.input_shapes[0][0], lambda x: client.run(job, [x])[0])


def in_batches(images: Images, batch: int, run: Callable[[Images], Images]) -> Images:
    """Outputs for all images, in batches; the last one is filled up with its last image."""
    parts = []
    for start in range(0, len(images), batch):
        part = images[start : start + batch]
        filled = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
        parts.append(run(filled)[: len(part)])
    return np.concatenate(parts)
