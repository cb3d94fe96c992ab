"""Stage "export": ONNX and NCNN files of every chosen SubNet, checked and measured on the device.

Each has BatchNorm statistics of its own, folded into its weights. Both formats are written for every device;
what it does not run is checked in a local runtime. A file whose outputs differ from torch is not kept.
"""

import hashlib
import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

import tailor_ir
from profiling_agents.client import AgentClient, AgentError, ModelJob, local_agent
from profiling_agents.messages import Format, MeasureSettings, Precision
from tailor_ir import SuperNet
from tasks.artifacts import append_line, read_json, read_lines, write_bytes, write_json
from tasks.baseline import measure_baseline
from tasks.convert import ConversionError, Limits, convert
from tasks.evaluate import EvaluationData, count_correct, statistics_of
from tasks.jobs import ncnn_job, onnx_job
from tasks.predict.measure import SubNetMeter, onnx_of
from tasks.progress import Progress
from tasks.search import FRONT_FILE

EXPORTS_FILE = "exports.json"
DONE_FILE = "exports.jsonl"

LOCAL_RUNTIME: dict[Format, str] = {"onnx": "onnxruntime", "ncnn": "ncnn"}

Config = Mapping[str, Any]
Row = dict[str, Any]


class Tolerance(BaseModel):
    """Largest difference over the largest torch output, by the precision that the runtime computes in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fp32: float = Field(1e-4, gt=0)
    bf16: float = Field(2e-2, gt=0)
    fp16: float = Field(2e-2, gt=0)

    def of(self, precision: Precision) -> float:
        """The tolerance of one precision."""
        return {"fp32": self.fp32, "bf16": self.bf16, "fp16": self.fp16}[precision]


class Settings(BaseModel):
    """How exported files are checked and measured."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    check_images: int = Field(4, ge=1, le=1000)
    tolerance: Tolerance = Tolerance()
    measure: MeasureSettings = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)
    conversion_wall_s: float = Field(120.0, gt=0)
    conversion_memory_mib: int = Field(8192, ge=512)

    @property
    def limits(self) -> Limits:
        """What one conversion may use."""
        return Limits(wall_s=self.conversion_wall_s, memory_mib=self.conversion_memory_mib)


def run(
    settings: Settings,
    supernet: Path,
    search: Path,
    data: Mapping[str, EvaluationData],
    client: AgentClient,
    out: Path,
    progress: Progress,
    batch: int = 1,
) -> Row:
    """Export every winner of `search/front.json` into `out`; writes and returns `exports.json`.

    `data`: split -> images to state the accuracy on; the first one's images check the files. `batch`: samples of an ONNX
    file; NCNN files have no batch axis. The caller holds the device's lease. What an earlier call finished is not done
    again.
    """
    front = read_json(search / FRONT_FILE)
    winners = front["winners"]
    done = {row["digest"]: row for row in read_lines(out / DONE_FILE)}
    todo = {row["digest"]: row["config"] for row in winners if row["digest"] not in done}
    total = len({row["digest"] for row in winners})
    with ExitStack() as stack, progress.bar("export", total, total - len(todo)) as bar:
        net = tailor_ir.load(supernet, batch=batch)
        exporter = Exporter(settings, net, data, client, out, stack)
        for digest, config in todo.items():
            done[digest] = exporter.export(digest, config)
            append_line(out / DONE_FILE, done[digest])
            bar.advance()
    meter = SubNetMeter(net, client, settings.measure, settings.limits)
    result = {
        "device": client.capabilities().model_dump(mode="json"),
        "winners": [_winner(row, done[row["digest"]]) for row in winners],
        "subnets": [done[digest] for digest in dict.fromkeys(row["digest"] for row in winners)],
        "baseline": measure_baseline(front["baseline"], meter, data, out, progress),
    }
    write_json(out / EXPORTS_FILE, result)
    return result


def _winner(chosen: Row, exported: Row) -> Row:
    """Budget, predicted and measured side by side."""
    measured_ms = exported["latency"]["p50_ms"]
    return {
        "digest": chosen["digest"],
        "budget_ms": chosen["budget_ms"],
        "predicted_ms": chosen["predicted_ms"],
        "measured_ms": measured_ms,
        "within_budget": measured_ms is not None and measured_ms <= chosen["budget_ms"],
        "predicted_accuracy": chosen["predicted_accuracy"],
        "accuracy": exported["accuracy"],
        "files_ok": all(file["state"] == "ok" for file in exported["files"].values()),
    }


@dataclass(frozen=True, slots=True)
class Exporter:
    """Exports single SubNets; local runtimes are started at first need and end with `agents`."""

    settings: Settings
    net: SuperNet
    data: Mapping[str, EvaluationData]
    client: AgentClient
    out: Path
    agents: ExitStack
    _local: dict[Format, AgentClient] = field(default_factory=dict)

    def export(self, digest: str, config: Config) -> Row:
        """Write the files of one SubNet, check and measure them; returns what its model card says."""
        images = next(iter(self.data.values()))
        statistics = statistics_of(self.net, dict(config), images)
        module = self.net.build(dict(config), statistics).eval()
        model = onnx_of(self.net, config, statistics)
        inputs, expected = self._references(module, config, images)
        jobs = self._jobs(digest, model, model if self.net.batch == 1 else onnx_of(self.net, config, statistics, 1))
        files = {name: self._file(job, inputs, expected) for name, job in jobs.items()}
        card = {
            "digest": digest,
            "config": dict(config),
            "input_shape": list(self.net.input_shape(dict(config))),
            "macs": self.net.macs(dict(config)),
            "parameters": self.net.parameters(dict(config)),
            "accuracy": {split: self._accuracy(module, config, data) for split, data in self.data.items()},
            "files": files,
            "latency": self._latency(jobs),
        }
        write_json(self.out / f"{digest}.json", card)
        return card

    def _jobs(self, digest: str, model: bytes, one_sample: bytes) -> dict[Format, ModelJob | ConversionError]:
        try:
            ncnn: ModelJob | ConversionError = ncnn_job(digest, one_sample, convert(one_sample, self.settings.limits))
        except ConversionError as error:
            ncnn = error
        return {"onnx": onnx_job(digest, model), "ncnn": ncnn}

    def _references(
        self, module: torch.nn.Module, config: Config, images: EvaluationData
    ) -> tuple[np.ndarray, np.ndarray]:
        """Real images (N, C, H, W) and torch's outputs for them."""
        height, width = self.net.input_shape(dict(config))[-2:]
        x_BCHW = torch.cat([x for x, _ in images.batches((height, width))])[: self.settings.check_images]
        with torch.inference_mode():
            return x_BCHW.cpu().numpy(), module(x_BCHW).cpu().numpy()

    def _accuracy(self, module: torch.nn.Module, config: Config, images: EvaluationData) -> float:
        height, width = self.net.input_shape(dict(config))[-2:]
        return count_correct(module, images.batches((height, width))).share

    def _file(self, job: ModelJob | ConversionError, inputs: np.ndarray, expected: np.ndarray) -> Row:
        """Check one format against torch and keep its files when they agree."""
        if isinstance(job, ConversionError):
            return {"state": "failed", "reason": str(job)}
        try:
            client = self._runtime(job.format)
            got = _outputs(client, job, inputs)
        except AgentError as error:
            return {"state": "failed", "reason": str(error)}
        difference = float(np.abs(got - expected).max() / np.abs(expected).max())
        runtime = client.capabilities()
        tolerance = self.settings.tolerance.of(runtime.precision)
        checked = {
            "relative_difference": difference if math.isfinite(difference) else None,
            "tolerance": tolerance,
            "images": len(inputs),
            "on_device": client is self.client,
            "runtime": runtime.backend,
            "precision": runtime.precision,
        }
        if not difference <= tolerance:
            reason = f"outputs differ from torch by {difference:.3g}; allowed in {runtime.precision}: {tolerance:g}"
            return {"state": "failed", "reason": reason, **checked}
        suffixes = (".onnx",) if job.format == "onnx" else (".ncnn.param", ".ncnn.bin")
        paths = [self.out / f"{job.key}{suffix}" for suffix in suffixes]
        for path, content in zip(paths, job.files, strict=True):
            write_bytes(path, content)
        digests = {
            path.name: hashlib.sha256(content).hexdigest() for path, content in zip(paths, job.files, strict=True)
        }
        return {"state": "ok", "sha256": digests, "bytes": sum(map(len, job.files)), **checked}

    def _runtime(self, model_format: Format) -> AgentClient:
        """The device when it takes the format, else an agent on this machine."""
        if model_format in self.client.capabilities().formats:
            return self.client
        if model_format not in self._local:
            agent = local_agent(backend=LOCAL_RUNTIME[model_format])
            self._local[model_format] = self.agents.enter_context(agent)
        return self._local[model_format]

    def _latency(self, jobs: Mapping[Format, ModelJob | ConversionError]) -> Row:
        """Measured on the device, in its format."""
        job = next(jobs[name] for name in jobs if name in self.client.capabilities().formats)
        if isinstance(job, ConversionError):
            return {"state": "failed", "reason": str(job), "p50_ms": None}
        meter = SubNetMeter(self.net, self.client, self.settings.measure, self.settings.limits)
        return meter.time(job).model_dump(mode="json", exclude={"key"})


def _outputs(client: AgentClient, job: ModelJob, inputs: np.ndarray) -> np.ndarray:
    """Outputs for all images, in batches of the job; the last one is filled up with its last image."""
    batch = job.input_shapes[0][0]
    parts = []
    for start in range(0, len(inputs), batch):
        part = inputs[start : start + batch]
        filled = np.concatenate([part, np.repeat(part[-1:], batch - len(part), axis=0)])
        parts.append(client.run(job, [filled])[0][: len(part)])
    return np.concatenate(parts)
