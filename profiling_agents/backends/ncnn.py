"""ncnn on the CPU, from (param, bin) files, and the precisions in which it really computes on this processor.

ncnn has no batch axis: a leading 1 is dropped and put back. Every run makes a new Extractor (a used Extractor returns
its cached output), with pooled allocators as benchncnn does.

ncnn takes every option everywhere, and ignores an option that its layers for the processor lack: on x86 a convolution
in fp16 gives the very bits of fp32. A precision counts as supported when the outputs of a small layer differ from fp32
by rounding.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import ncnn
import numpy as np

from profiling_agents import messages
from profiling_agents.backends import base
from profiling_agents.backends.sanitized_names import SanitizedNames, renamed_file, without_batch
from profiling_agents.sensing.machine import Runs

OPTIONS: Mapping[messages.Precision, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("use_bf16_packed", "use_bf16_storage"),
    "fp16": ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"),
    "fp16_storage": ("use_fp16_packed", "use_fp16_storage"),
}
"""ncnn's options for each precision that is set by options; all other options are off."""

CHANNELS, SIZE = 16, 8


def precision_options(precision: messages.Precision) -> dict[str, bool]:
    """The fields of ncnn's `Option` for one precision: its own are on, those of the other precisions are off."""
    names = dict.fromkeys(name for names in OPTIONS.values() for name in names)
    return {name: name in OPTIONS[precision] for name in names}


@cache
def probe() -> tuple[tuple[messages.Precision, ...], messages.Precision | None]:
    """The precisions in which ncnn computes here, fp32 first, and that in which products of fp16 are added up (None: no fp16).

    One convolution in every precision is compared with fp32; it takes milliseconds.
    """
    outputs = {precision: [_convolution(precision_options(precision))] for precision in OPTIONS}
    found = base.rounded_precisions(outputs)
    arithmetic: messages.Precision | None = None
    if "fp16" in found:
        arithmetic = "fp32" if np.array_equal(outputs["fp16_storage"], outputs["fp16"]) else "fp16"
    return found, arithmetic


def _convolution(options: Mapping[str, bool]) -> np.ndarray:
    """A 3x3 convolution of fixed random weights on a fixed random input; inputs and outputs are fp32."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32)
    x_CHW = rng.standard_normal((CHANNELS, SIZE, SIZE), dtype=np.float32)
    layer = f"Convolution conv 1 1 in0 out0 0={CHANNELS} 1=3 4=1 5=0 6={weights.size}"
    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_vulkan_compute = False
    for name, value in options.items():
        setattr(net.opt, name, value)
    net.load_param_mem(f"7767517\n2 2\nInput in0 0 1 in0\n{layer}\n")
    content = bytes(4) + weights.tobytes()
    net.load_model_mem(content)
    extractor = net.create_extractor()
    extractor.input("in0", ncnn.Mat(x_CHW).clone())
    status, mat = extractor.extract("out0")
    assert status == 0
    return np.array(mat)


OUT_OF_MEMORY = -100
"""The return value of ncnn's layers when an allocation failed."""

MAX_AXES = 4
AS_IT_IS = 1  # extract a blob without converting it

TILES = ("23", "43", "63")
ALLOCATORS = {"blob_allocator": "UnlockedPoolAllocator", "workspace_allocator": "PoolAllocator"}
NO_ALLOCATOR = "none"
ENGINE_OPTIONS = (
    base.switch(
        "packing",
        "Channels lie in blocks of 4, 8 or 16, as wide as the vector registers.",
        {"use_packing_layout": False},
    ),
    messages.EngineOption(
        name="winograd",
        choices=("on", "23", "43", "63", "off"),
        default="on",
        does="3x3 convolutions by Winograd's method with tiles that ncnn picks, with tiles of one size alone, or not at all.",
        by_operator=True,
        sets={
            "off": {"use_winograd_convolution": False},
            **{tile: {f"use_winograd{other}_convolution": False for other in TILES if other != tile} for tile in TILES},
        },
    ),
    base.switch(
        "sgemm",
        "Convolutions as a product of matrices, where no other method is picked.",
        {"use_sgemm_convolution": False},
        by_operator=True,
    ),
    base.switch("lightmode", "A blob is freed when its last reader has run.", {"lightmode": False}),
    messages.EngineOption(
        name="allocator",
        choices=("pool", "system"),
        default="pool",
        does="Memory of blobs is kept from run to run, or comes from the system for each run.",
        sets={"system": dict.fromkeys(ALLOCATORS, NO_ALLOCATOR)},
    ),
)
"""The wheel's OpenMP (libgomp) has no setting for how long idle threads spin, so there is no such option."""


class NcnnBackend(base.Backend):
    """ncnn in one precision with a fixed number of threads."""

    name = "ncnn"
    formats = ("ncnn",)

    def __init__(self, options: base.RuntimeOptions) -> None:
        base.require_cpu(options)
        self.precision = options.precision
        self.engine_options = (*ENGINE_OPTIONS, *base.thread_option(options.threads, "num_threads"))
        self.precisions, added_up = probe()
        if self.precision not in self.precisions:
            why = (
                "a convolution gives the very outputs of fp32"
                if self.precision in OPTIONS
                else "no file is made for it"
            )
            raise messages.AgentError(
                f"--precision: got {self.precision}, which ncnn {ncnn.__version__} does not compute in on this "
                f"processor ({why}); allowed: {', '.join(self.precisions)}"
            )
        arithmetics: dict[messages.Precision, messages.Precision | None] = {"fp16": added_up, "fp16_storage": "fp32"}
        self.arithmetic = arithmetics.get(self.precision)
        self.settings = {
            "num_threads": options.threads,
            "use_vulkan_compute": False,
            **precision_options(options.precision),
            **ALLOCATORS,
        }

    def version_and_build(self) -> tuple[str, str]:
        """Version, and the hash of the extension module that holds the runtime."""
        return ncnn.__version__, base.library_hash(Path(ncnn.ncnn.__file__))

    def load(self, files: Sequence[Path], job: messages.JobMessage) -> base.Model:
        """Load param and bin files; ModelError when ncnn refuses one, or for a batch above 1."""
        shapes, names = without_batch(job, "ncnn", MAX_AXES), SanitizedNames()
        with names.restored_errors(), renamed_file(files[0], names) as param:
            own_job = names.job(job, "blob", None, names.known("blob"))
            model = NcnnModel(own_job, shapes, names, job.engine.applied(self.settings, self.engine_options))
            model.load(param, *files[1:])
            return model


class NcnnModel(base.Model):
    """One ncnn.Net and its allocators, which must outlive it."""

    runtime = "ncnn"

    def __init__(
        self,
        job: messages.JobMessage,
        shapes: Sequence[messages.Shape],
        names: SanitizedNames,
        settings: messages.RuntimeSettings,
    ) -> None:
        """shapes: of the inputs, without the batch."""
        super().__init__(job, dict.fromkeys(job.input_names, np.dtype(np.float32)), names)
        self._shapes = shapes
        # one thread: its clock stands still while other processes have the core
        self._clock_ns = time.thread_time_ns if settings["num_threads"] == 1 else time.perf_counter_ns
        self._net = ncnn.Net()
        self._pools = {
            name: getattr(ncnn, str(settings[name]))() for name in ALLOCATORS if settings[name] != NO_ALLOCATOR
        }
        for name, value in {**settings, **self._pools}.items():
            if value != NO_ALLOCATOR:
                setattr(self._net.opt, name, value)
        self._has_weights = True

    def load(self, param: Path, weights: Path | None = None) -> None:
        """Read the files; without a weights file, all weights are zeros."""
        if self._net.load_param(str(param)) != 0:
            raise base.ModelError("ncnn cannot read the param file")
        self._has_weights = weights is not None
        if self._net.load_model(ncnn.DataReaderFromEmpty() if weights is None else str(weights)) != 0:
            raise base.ModelError("ncnn cannot load the weights")

    def _repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
        """Runs all outputs n times from fresh extractors."""
        feeds = self._feeds(inputs)
        outputs = self._job.output_names
        net = self._net
        self._extract_all(feeds)

        def repeat(runs: int) -> None:
            for _ in range(runs):
                extractor = net.create_extractor()
                for name, mat in feeds:
                    extractor.input(name, mat)
                for name in outputs:
                    extractor.extract(name)

        return repeat

    def _layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[messages.LayerTiming]:
        """Time blob after blob from one extractor: each call runs only the layer that is missing.

        The cost of a call whose blob is ready is subtracted. Blobs stay as they are (packed, 16 bits). The extractor keeps all
        blobs, so timing layers takes more memory than a run.
        """
        feeds = self._feeds(inputs)
        blobs = [blob.name for blob in self._net.blobs()]
        layers = [layer for layer in self._net.layers() if layer.tops and layer.type != "Input"]
        tops = [blobs[layer.tops[0]] for layer in layers]
        rows: list[list[int]] = []
        empty: list[int] = []
        for _ in runs.each(base.LEAST_RUNS):
            extractor = self._net.create_extractor()
            extractor.set_light_mode(False)
            for name, mat in feeds:
                _check(extractor.input(name, mat), f"input '{name}'")
            rows.append([self._extraction_ns(extractor, top) for top in tops])
            empty += [self._extraction_ns(extractor, top) for top in tops]
        times_ms = base.interquartile_mean((np.array(runs.kept(rows)) - float(np.median(empty))) * 1e-6).clip(min=0.0)
        return [
            messages.LayerTiming(
                name=layer.name,
                kind=layer.type,
                outputs=tuple(blobs[top] for top in layer.tops),
                time_ms=float(time_ms),
            )
            for layer, time_ms in zip(layers, times_ms, strict=True)
        ]

    def _extraction_ns(self, extractor: "ncnn.Extractor", blob: str) -> int:
        start = self._clock_ns()
        status, _ = extractor.extract(blob, AS_IT_IS)
        duration_ns = self._clock_ns() - start
        _check(status, f"blob '{blob}'")
        return duration_ns

    def _outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        if not self._has_weights:
            raise base.ModelError("the job has no weights, so that it can be timed, but not run for its outputs")
        return self._extract_all(self._feeds(inputs))

    def _extract_all(self, feeds: Sequence[tuple[str, ncnn.Mat]]) -> list[np.ndarray]:
        """fp32 outputs with the batch axis put back."""
        extractor = self._net.create_extractor()
        for name, mat in feeds:
            _check(extractor.input(name, mat), f"input '{name}'")
        found = []
        for name in self._job.output_names:
            status, mat = extractor.extract(name)
            _check(status, f"output '{name}'")
            if mat.empty():
                raise base.ModelError(f"output '{name}': ncnn gave an empty tensor")
            found.append(np.array(mat)[np.newaxis])
        return found

    def close(self) -> None:
        """Free the net, then its memory pools: the other order crashes."""
        self._net.clear()
        for pool in self._pools.values():
            pool.clear()

    def _feeds(self, inputs: Sequence[np.ndarray]) -> list[tuple[str, ncnn.Mat]]:
        # A Mat over numpy's memory lacks ncnn's alignment and crashes vector code; the clone has it.
        return [
            (name, ncnn.Mat(np.ascontiguousarray(array.reshape(shape))).clone())
            for name, array, shape in zip(self._job.input_names, inputs, self._shapes, strict=True)
        ]


def _check(status: int, where: str) -> None:
    if status == OUT_OF_MEMORY:
        raise base.ModelMemoryError(where)
    if status != 0:
        raise base.ModelError(f"{where}: ncnn failed with code {status}")
