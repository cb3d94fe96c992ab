"""ncnn on the CPU, from (param, bin) files, and the precisions in which it really computes on this processor.

ncnn has no batch axis: a leading 1 is dropped and put back. Every run makes a new Extractor (a used Extractor returns
its cached output), with pooled allocators as benchncnn does.

ncnn takes every option everywhere, and ignores an option that its layers for the processor lack: on x86 a convolution
in fp16 gives the very bits of fp32. A precision counts as supported when the outputs of a small layer differ from fp32
by rounding.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import ncnn
import numpy as np

from profiling_agents.backends.base import (
    LEAST_RUNS,
    ModelError,
    ModelMemoryError,
    RuntimeOptions,
    check_inputs,
    interquartile_mean,
    library_hash,
    require_cpu,
    restore_shape,
    switch,
    thread_option,
)
from profiling_agents.backends.own_names import NamedModel, OwnNames, renamed_file
from profiling_agents.messages import (
    AgentError,
    EngineOption,
    Format,
    JobMessage,
    LayerTiming,
    Precision,
    RuntimeInfo,
    RuntimeSettings,
    Shape,
)
from profiling_agents.sensing.machine import Runs

OPTIONS: Mapping[Precision, tuple[str, ...]] = {
    "fp32": (),
    "bf16": ("use_bf16_packed", "use_bf16_storage"),
    "fp16": ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic"),
    "fp16_storage": ("use_fp16_packed", "use_fp16_storage"),
}
"""ncnn's options for each precision that is set by options; all other options are off."""

CHANNELS, SIZE = 16, 8
LARGEST_ROUNDING = 0.05
"""Relative to the largest output; a larger difference is another computation, not rounding."""


@dataclass(frozen=True, slots=True)
class SupportedPrecisions:
    """`precisions`: fp32 first. `arithmetic`: the precision in which products of fp16 are added up; None without fp16."""

    precisions: tuple[Precision, ...]
    arithmetic: Precision | None

    def arithmetic_of(self, precision: Precision) -> Precision | None:
        """The precision in which products of fp16 are added up; None if `precision` has no products of fp16."""
        if precision == "fp16":
            return self.arithmetic
        return "fp32" if precision == "fp16_storage" else None


def precision_options(precision: Precision) -> dict[str, bool]:
    """The fields of ncnn's `Option` for one precision: its own are on, those of the other precisions are off."""
    names = dict.fromkeys(name for names in OPTIONS.values() for name in names)
    return {name: name in OPTIONS[precision] for name in names}


@cache
def probe() -> SupportedPrecisions:
    """Run one convolution in every precision and compare the outputs with fp32; takes milliseconds."""
    outputs = {precision: _convolution(precision_options(precision)) for precision in OPTIONS}
    reference = outputs["fp32"]
    rounded = tuple(precision for precision, output in outputs.items() if _is_rounded(output, reference))
    arithmetic: Precision | None = None
    if "fp16" in rounded:
        arithmetic = "fp32" if np.array_equal(outputs["fp16_storage"], outputs["fp16"]) else "fp16"
    return SupportedPrecisions(("fp32", *rounded), arithmetic)


def _is_rounded(output: np.ndarray, reference: np.ndarray) -> bool:
    difference = float(np.abs(output - reference).max() / np.abs(reference).max())
    return 0.0 < difference <= LARGEST_ROUNDING


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
    switch(
        "packing",
        "Channels lie in blocks of 4, 8 or 16, as wide as the vector registers.",
        {"use_packing_layout": False},
    ),
    EngineOption(
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
    switch(
        "sgemm",
        "Convolutions as a product of matrices, where no other method is picked.",
        {"use_sgemm_convolution": False},
        by_operator=True,
    ),
    switch("lightmode", "A blob is freed when its last reader has run.", {"lightmode": False}),
    EngineOption(
        name="allocator",
        choices=("pool", "system"),
        default="pool",
        does="Memory of blobs is kept from run to run, or comes from the system for each run.",
        sets={"system": dict.fromkeys(ALLOCATORS, NO_ALLOCATOR)},
    ),
)
"""The wheel's OpenMP (libgomp) has no setting for how long idle threads spin, so there is no such option."""


class NcnnBackend:
    """ncnn in one precision with a fixed number of threads."""

    formats: tuple[Format, ...] = ("ncnn",)

    def __init__(self, options: RuntimeOptions) -> None:
        require_cpu(options)
        self._precision = options.precision
        self.engine_options = (*ENGINE_OPTIONS, *thread_option(options.threads, "num_threads"))
        self._found = probe()
        if self._precision not in self._found.precisions:
            why = (
                "a convolution gives the very outputs of fp32"
                if self._precision in OPTIONS
                else "no file is made for it"
            )
            raise AgentError(
                f"--precision: got {self._precision}, which ncnn {ncnn.__version__} does not compute in on this "
                f"processor ({why}); allowed: {', '.join(self._found.precisions)}"
            )
        self.settings: RuntimeSettings = {
            "num_threads": options.threads,
            "use_vulkan_compute": False,
            **precision_options(options.precision),
            **ALLOCATORS,
        }

    def describe(self) -> RuntimeInfo:
        """Version, precision, and the hash of the extension module that holds the runtime."""
        return RuntimeInfo(
            backend="ncnn",
            version=ncnn.__version__,
            build=library_hash(Path(ncnn.ncnn.__file__)),
            formats=self.formats,
            precision=self._precision,
            precisions=self._found.precisions,
            arithmetic=self._found.arithmetic_of(self._precision),
            settings=self.settings,
            engine_options=self.engine_options,
        )

    def load(self, files: Sequence[Path], job: JobMessage) -> NamedModel:
        """Load param and bin files; ModelError when ncnn refuses one, or for a batch above 1."""
        inputs = zip(job.input_names, job.input_shapes, strict=True)
        without_batch = [_without_batch(name, shape) for name, shape in inputs]
        names = OwnNames()
        with names.restored_errors(), renamed_file(files[0], names) as param:
            own_job = names.job(job, "blob", None, names.known("blob"))
            model = NcnnModel(own_job, without_batch, job.engine.applied(self.settings, self.engine_options))
            model.load(param, *files[1:])
            return NamedModel(model, names)


class NcnnModel:
    """One ncnn.Net and its allocators, which must outlive it."""

    on_cpu = True
    elsewhere = False

    def __init__(self, job: JobMessage, shapes: Sequence[Shape], settings: RuntimeSettings) -> None:
        self._job = job
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
            raise ModelError("ncnn cannot read the param file")
        self._has_weights = weights is not None
        if self._net.load_model(ncnn.DataReaderFromEmpty() if weights is None else str(weights)) != 0:
            raise ModelError("ncnn cannot load the weights")

    def random_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """fp32, standard normal."""
        return [rng.standard_normal(shape, dtype=np.float32) for shape in self._job.input_shapes]

    def repeater(self, inputs: Sequence[np.ndarray]) -> Callable[[int], None]:
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

    def layers(self, inputs: Sequence[np.ndarray], runs: Runs) -> list[LayerTiming]:
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
        for _ in runs.each(LEAST_RUNS):
            extractor = self._net.create_extractor()
            extractor.set_light_mode(False)
            for name, mat in feeds:
                _check(extractor.input(name, mat), f"input '{name}'")
            rows.append([self._extraction_ns(extractor, top) for top in tops])
            empty += [self._extraction_ns(extractor, top) for top in tops]
        times_ms = interquartile_mean((np.array(runs.kept(rows)) - float(np.median(empty))) * 1e-6).clip(min=0.0)
        return [
            LayerTiming(
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

    def run(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """fp32 outputs with the batch axis put back, or in the job's output shapes."""
        if not self._has_weights:
            raise ModelError("the job has no weights, so that it can be timed, but not run for its outputs")
        return self._extract_all(self._feeds(inputs))

    def _extract_all(self, feeds: Sequence[tuple[str, ncnn.Mat]]) -> list[np.ndarray]:
        extractor = self._net.create_extractor()
        for name, mat in feeds:
            _check(extractor.input(name, mat), f"input '{name}'")
        return [self._extract(extractor, index) for index in range(len(self._job.output_names))]

    def close(self) -> None:
        """Free the net, then its memory pools: the other order crashes."""
        self._net.clear()
        for pool in self._pools.values():
            pool.clear()

    def _feeds(self, inputs: Sequence[np.ndarray]) -> list[tuple[str, ncnn.Mat]]:
        check_inputs(self._job, inputs)
        feeds = []
        for name, array, shape in zip(self._job.input_names, inputs, self._shapes, strict=True):
            if array.dtype != np.float32:
                raise ModelError(f"input '{name}': got {array.dtype}; ncnn takes float32")
            contiguous = np.ascontiguousarray(array.reshape(shape))
            # A Mat over numpy's memory lacks ncnn's alignment and crashes vector code; the clone has it.
            feeds.append((name, ncnn.Mat(contiguous).clone()))
        return feeds

    def _extract(self, extractor: "ncnn.Extractor", index: int) -> np.ndarray:
        name = self._job.output_names[index]
        status, mat = extractor.extract(name)
        _check(status, f"output '{name}'")
        if mat.empty():
            raise ModelError(f"output '{name}': ncnn gave an empty tensor")
        array = np.array(mat)
        if self._job.output_shapes is None:
            return array[np.newaxis]
        return restore_shape(name, array, self._job.output_shapes[index])


def _without_batch(name: str, shape: Shape) -> Shape:
    if len(shape) < 2:
        return shape
    if shape[0] != 1 or len(shape) - 1 > MAX_AXES:
        raise ModelError(f"input '{name}': got shape {shape}; ncnn takes batch 1 and at most {MAX_AXES} more axes")
    return shape[1:]


def _check(status: int, where: str) -> None:
    if status == OUT_OF_MEMORY:
        raise ModelMemoryError(where)
    if status != 0:
        raise ModelError(f"{where}: ncnn failed with code {status}")
