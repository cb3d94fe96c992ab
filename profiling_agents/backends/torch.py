"""torch in eager mode, on the CPU or a CUDA device, from ONNX files through onnx2torch.

On CUDA, inputs lie on the device, and a time is the time between two events of its stream. TF32 is off: it is another
precision and must not appear under the name of fp32.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx2torch
import torch

from profiling_agents.backends import base
from profiling_agents.backends.onnx_files import input_types, opened, with_filled_tensors
from profiling_agents.backends.sanitized_names import SanitizedNames
from profiling_agents.messages import AgentError, EngineOption, JobMessage, LayerTiming, RuntimeSettings
from profiling_agents.sensing.machine import Runs

EVERYWHERE = (
    EngineOption(
        name="layout",
        choices=("contiguous", "channels_last"),
        default="contiguous",
        does="Images and kernels lie channel by channel, or pixel by pixel.",
        sets={"channels_last": {"memory_format": "channels_last"}},
    ),
)
ON_CPU = (base.switch("mkldnn", "Convolutions and matrix products by oneDNN.", {"mkldnn": False}),)
THREADS = "num_threads"
IMAGE_AXES = 4


class TorchBackend(base.Backend):
    """One torch device with a fixed number of threads."""

    name = "torch"
    formats = ("onnx",)

    def __init__(self, options: base.RuntimeOptions) -> None:
        base.require_fp32(options)
        self._device = torch.device(_provider(options.provider))
        self.provider = self._device.type
        if self.provider != "cpu":
            self.accelerator = torch.cuda.get_device_name(self._device)
        on_cpu = (*ON_CPU, *base.thread_option(options.threads, THREADS)) if self.provider == "cpu" else ()
        self.engine_options = (*EVERYWHERE, *on_cpu)
        self.settings = {THREADS: options.threads, "num_interop_threads": 1}
        torch.set_num_threads(options.threads)
        torch.set_num_interop_threads(1)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self._start()

    def version_and_build(self) -> tuple[str, str]:
        """torch's version; the hashes of its libraries, and onnx2torch's version."""
        libraries = Path(torch.__file__).parent / "lib"
        names = ("libtorch_cpu.so",) if self.provider == "cpu" else ("libtorch_cpu.so", "libtorch_cuda.so")
        hashes = " ".join(base.library_hash(libraries / name) for name in names)
        return torch.__version__, f"{hashes} onnx2torch {version('onnx2torch')}"

    def load(self, files: Sequence[Path], job: JobMessage) -> base.Model:
        """Convert an ONNX file; ModelError naming the operator that has no converter."""
        with opened(files[0], job) as (file, own_job, names):
            model = with_filled_tensors(file)
            types, outputs = input_types(model), [value.name for value in model.graph.output]
            with base.translated("onnx2torch", "convert"):
                module = onnx2torch.convert(model).eval().requires_grad_(False).to(self._device)
            settings = job.engine.applied(self.settings, self.engine_options)
            return TorchModel(own_job, types, names, module, outputs, self._device, settings)

    def _start(self) -> None:
        """Compute once, so that the libraries map their memory before memory is limited."""
        with torch.inference_mode():
            x = torch.zeros(1, 8, 8, 8, device=self._device)
            torch.nn.functional.conv2d(x, torch.zeros(8, 8, 3, 3, device=self._device)).flatten(1).matmul(
                torch.zeros(288, 8, device=self._device)
            )
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)


class TorchModel(base.Model):
    """One converted module on its device."""

    runtime = "torch"

    def __init__(
        self,
        job: JobMessage,
        types: Mapping[str, np.dtype],
        names: SanitizedNames,
        module: torch.nn.Module,
        outputs: Sequence[str],
        device: torch.device,
        settings: RuntimeSettings,
    ) -> None:
        """settings: threads and oneDNN apply to the whole process until `close`."""
        super().__init__(job, types, names)
        self._layout = getattr(torch, str(settings.get("memory_format", "contiguous_format")))
        self._module, self._results = module.to(memory_format=self._layout), outputs
        self._flags = ExitStack()
        self._flags.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(int(settings[THREADS]))
        if not settings.get("mkldnn", True):
            self._flags.enter_context(torch.backends.mkldnn.flags(enabled=False))
        self._device = device
        self.on_cpu = device.type == "cpu"

    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], float | None]:
        """A function that runs n times on inputs that lie on the device; on CUDA it returns the seconds between two events."""
        self._outputs(inputs)
        feeds, module = self._feeds(inputs), self._module

        @torch.inference_mode()
        def on_cpu(runs: int) -> None:
            for _ in range(runs):
                module(*feeds)

        if self._device.type == "cpu":
            return on_cpu
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def on_cuda(runs: int) -> float:
            first.record()
            on_cpu(runs)
            last.record()
            last.synchronize()
            return float(first.elapsed_time(last)) * 1e-3

        return on_cuda

    @torch.inference_mode()
    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
        """Time modules one after the other, between hooks. CUDA: between two events, including the start of a module."""
        feeds, names = self._feeds(inputs), {module: name for name, module in self._module.named_children()}
        starts: list[Any] = []
        row: dict[str, tuple[Any, Any]] = {}
        handles = [module.register_forward_pre_hook(lambda *_: starts.append(self._now())) for module in names]
        handles += [
            module.register_forward_hook(lambda module, *_: row.update({names[module]: (starts.pop(), self._now())}))
            for module in names
        ]
        rows: list[dict[str, tuple[Any, Any]]] = []
        try:
            for _ in runs.each(base.LEAST_RUNS):
                row.clear()
                self._module(*feeds)
                if not self.on_cpu:
                    torch.cuda.synchronize(self._device)
                rows.append(dict(row))
        finally:
            for handle in handles:
                handle.remove()
        kept = runs.kept(rows)
        rows_ms = [
            [(last - first) * 1e-6 if self.on_cpu else float(first.elapsed_time(last)) for first, last in one.values()]
            for one in kept
        ]
        times_ms = base.interquartile_mean(np.array(rows_ms))
        kinds = {name: type(module).__name__ for module, name in names.items()}
        return [
            LayerTiming(name=name, kind=kinds[name], time_ms=float(time_ms))
            for name, time_ms in zip(rows[0], times_ms, strict=True)
        ]

    def _now(self) -> Any:
        """The current moment by the device's own clock: nanoseconds, or a CUDA event."""
        if self.on_cpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @torch.inference_mode()
    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        result = self._module(*self._feeds(inputs))
        tensors = dict(zip(self._results, result if isinstance(result, list | tuple) else [result], strict=True))
        return [tensors[name].cpu().numpy() for name in self._job.output_names]

    def close(self) -> None:
        """Free the module and the memory that CUDA caches."""
        del self._module
        self._flags.close()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _feeds(self, inputs: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Tensors on the device in the order of the model's inputs."""
        given = dict(zip(self._job.input_names, inputs, strict=True))
        tensors = [torch.tensor(given[name], device=self._device) for name in self._types]
        return [one.contiguous(memory_format=self._layout) if one.dim() == IMAGE_AXES else one for one in tensors]


def _provider(wanted: str | None) -> str:
    allowed = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    if wanted is not None and wanted not in allowed:
        raise AgentError(f"--provider: got {wanted}; allowed: {', '.join(allowed)}")
    return wanted or "cpu"
