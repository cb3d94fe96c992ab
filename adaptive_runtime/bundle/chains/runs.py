"""Runs of a chain, segment by segment, in onnxruntime or ncnn behind one protocol, and settings of these runtimes.

Runtimes are imported on first use. In onnxruntime each segment has a session, and values go from one session to the
next without a copy; in ncnn one net continues from its computed values.

Legend: N samples, C channels, H height, W width, K classes.
"""

import importlib
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains.manifest import ChainFormat, ChainManifest
from adaptive_runtime.samples.inputs import unpacked

RUNTIMES: Mapping[ChainFormat, str] = {"onnx": "onnxruntime", "ncnn": "ncnn"}
ENUMERATIONS = {
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
}


class ChainRun(Protocol):
    """Samples in progress. `next`: the answer (N, K) at the next exit. `keep`: drop the samples outside a mask (N,)."""

    def next(self) -> Array: ...

    def keep(self, mask_N: NDArray[np.bool_]) -> None: ...


class ChainRuntime(Protocol):
    """A loaded chain. batch: samples of one run; None: any number. `start`: begin a run with samples (N, C, H, W)."""

    @property
    def batch(self) -> int | None: ...

    def start(self, x_NCHW: Array) -> ChainRun: ...

    def close(self) -> None: ...


def session_options(settings: Mapping[str, bool | int | str]) -> Any:
    """`onnxruntime.SessionOptions` with settings by the names of its API; names with a dot are configuration entries."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name, value in settings.items():
        if "." in name:
            options.add_session_config_entry(name, str(value))
        else:
            choices = getattr(onnxruntime, ENUMERATIONS[name]) if name in ENUMERATIONS else None
            setattr(options, name, value if choices is None else getattr(choices, str(value)))
    return options


def own_settings(manifest: ChainManifest, runtime: str) -> Mapping[str, bool | int | str]:
    """The settings of a chain if they are for this runtime; else none."""
    return manifest.settings if manifest.runtime == runtime else {}


def require_runtime(form: ChainFormat, where: str) -> None:
    """Import the runtime of a format. AdaptiveError if it is not installed."""
    try:
        importlib.import_module(RUNTIMES[form])
    except ImportError as error:
        needed = RUNTIMES[form]
        raise AdaptiveError(
            where, f"needs {needed}, which is not installed", next_step=f"pip install {needed}"
        ) from error


INT64 = "tensor(int64)"


def run_session(session: Any, given: Mapping[str, Any], outputs: Sequence[str]) -> Sequence[Any]:
    """Outputs of a session by name, from inputs by name: each an `OrtValue`, which is not copied.

    A binding takes a quarter of the overhead that `run_with_ort_values` adds to the run.
    """
    binding = session.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    found: Sequence[Any] = binding.get_outputs()
    return found


def inputs_of(session: Any, rng: np.random.Generator | None = None) -> dict[str, NDArray[Any]]:
    """Inputs for a session of fixed sizes: standard normal numbers by `rng`, else zeros.

    Whole numbers are 0, a valid index in every look-up.
    """
    found: dict[str, NDArray[Any]] = {}
    for one in session.get_inputs():
        if one.type == INT64:
            found[one.name] = np.zeros(one.shape, np.int64)
        else:
            found[one.name] = (
                np.zeros(one.shape, np.float32) if rng is None else rng.standard_normal(one.shape, np.float32)
            )
    return found


class OnnxChain:
    """Segments in onnxruntime.

    session_of: returns the session of a segment by its position; called when the segment runs. kept: the sessions never change,
    so that files of a fixed batch are bound only once: to the memory of a run, which the next run takes over.
    """

    def __init__(self, manifest: ChainManifest, session_of: Callable[[int], Any], *, kept: bool = False) -> None:
        import onnxruntime

        self.batch = manifest.input.shape[0]
        self.input = manifest.input
        self.value_of = onnxruntime.OrtValue.ortvalue_from_numpy
        self.memory_of = onnxruntime.OrtValue.ortvalue_from_shape_and_type
        self.session_of = session_of
        self.segments = manifest.segments
        self.names = [
            tuple(tuple(one.name for one in each) for each in (segment.inputs, segment.outputs))
            for segment in manifest.segments
        ]
        self._free: deque[BoundRun] | None = deque() if kept and _is_fixed(manifest) else None

    @classmethod
    def open(cls, manifest: ChainManifest, folder: Path) -> Self:
        """Open the chain with all sessions."""
        import onnxruntime

        options = session_options(own_settings(manifest, "onnxruntime"))
        sessions = [
            onnxruntime.InferenceSession(folder / str(segment.file), options, providers=["CPUExecutionProvider"])
            for segment in manifest.segments
        ]
        return cls(manifest, sessions.__getitem__, kept=True)

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with samples (N, C, H, W)."""
        if self._free is None:
            return _OnnxRun(self, x_NCHW)
        try:
            bound = self._free.pop()
        except IndexError:  # all memory is in use: several threads run at once
            bound = BoundRun.of(self)
        return _OnBoundMemory(self, bound, x_NCHW)

    def give_back(self, bound: "BoundRun") -> None:
        """Let the next run have the memory of a finished run."""
        if self._free is not None:
            self._free.append(bound)

    def close(self) -> None:
        """Free the sessions."""
        self._free = None
        del self.session_of


def _is_fixed(manifest: ChainManifest) -> bool:
    """Whether all sizes of all values are known."""
    given = (one for segment in manifest.segments for one in segment.outputs)
    return all(size is not None for one in (*manifest.input.every, *given) for size in one.shape)


class _OnnxRun:
    __slots__ = ("_at", "_chain", "_value_of", "_values")

    def __init__(self, chain: OnnxChain, x_NCHW: Array) -> None:
        self._chain, self._at = chain, 0
        self._value_of = chain.value_of
        parts = zip(chain.input.every, unpacked(x_NCHW), strict=True)
        self._values = {one.name: chain.value_of(values) for one, values in parts}

    def next(self) -> Array:
        inputs, outputs = self._chain.names[self._at]
        session = self._chain.session_of(self._at)
        self._at += 1
        values = self._values
        given = run_session(session, {name: values[name] for name in inputs}, outputs)
        values.update(zip(outputs, given, strict=True))
        found: Array = given[0].numpy().copy()
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        self._values = {name: self._value_of(value.numpy()[mask_N]) for name, value in self._values.items()}


class BoundRun(NamedTuple):
    """Memory for one run at a time. inputs: of the network, in order. steps: per segment the bound call and its answer."""

    inputs: tuple[Any, ...]
    steps: tuple[tuple[Callable[[Any], None], Any, Any], ...]

    @classmethod
    def of(cls, chain: OnnxChain) -> Self:
        """Memory bound to the sessions of a chain."""
        starts = [chain.memory_of(list(one.shape), np.dtype(one.type).type) for one in chain.input.every]
        values, steps = {one.name: start for one, start in zip(chain.input.every, starts, strict=True)}, []
        for at, (segment, (inputs, outputs)) in enumerate(zip(chain.segments, chain.names, strict=True)):
            session = chain.session_of(at)
            binding = session.io_binding()
            for name in inputs:
                binding.bind_ortvalue_input(name, values[name])
            for one in segment.outputs:
                values[one.name] = chain.memory_of(list(one.shape), np.float32)
                binding.bind_ortvalue_output(one.name, values[one.name])
            steps.append((session.run_with_iobinding, binding, values[outputs[0]]))
        return cls(tuple(starts), tuple(steps))


class _OnBoundMemory:
    """A run that returns its memory when nothing refers to it any more."""

    __slots__ = ("_at", "_bound", "_chain")

    def __init__(self, chain: OnnxChain, bound: BoundRun, x_NCHW: Array) -> None:
        self._chain, self._bound, self._at = chain, bound, 0
        for memory, values in zip(bound.inputs, unpacked(x_NCHW), strict=True):
            memory.update_inplace(values)

    def __del__(self) -> None:
        self._chain.give_back(self._bound)

    def next(self) -> Array:
        run, binding, answer = self._bound.steps[self._at]
        self._at += 1
        run(binding)
        found: Array = answer.numpy().copy()  # copied, since the next run overwrites this memory
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        assert mask_N.all(), "files of a fixed batch run with all of it"


POOLS = ("blob_allocator", "workspace_allocator")
NO_ALLOCATOR = "none"
THREAD_SAFE = {"UnlockedPoolAllocator": "PoolAllocator"}
"""Thread-safe memory pools that replace the pools with which one thread was measured."""


class NcnnChain:
    """One net in ncnn, one sample at a time: extracting an answer computes only the missing values, and nothing twice."""

    batch = 1

    def __init__(self, manifest: ChainManifest, folder: Path) -> None:
        import ncnn

        self._matrix_of = ncnn.Mat
        self.net = ncnn.Net()
        own = own_settings(manifest, "ncnn")
        settings = {name: THREAD_SAFE.get(str(value), value) for name, value in own.items()}
        self._pools = {
            name: getattr(ncnn, str(settings[name]))()
            for name in POOLS
            if settings.get(name, NO_ALLOCATOR) != NO_ALLOCATOR
        }
        for name, value in {**settings, **self._pools}.items():
            if value != NO_ALLOCATOR:
                setattr(self.net.opt, name, value)
        param, weights = (next(name for name in manifest.files if name.endswith(end)) for end in (".param", ".bin"))
        if self.net.load_param(str(folder / param)) or self.net.load_model(str(folder / weights)):
            raise AdaptiveError(
                str(folder / param), "ncnn cannot load it", next_step="install the ncnn that it was made for"
            )
        self.inputs = tuple(one.name for one in manifest.input.every)
        self.outputs = tuple(segment.outputs[0].name for segment in manifest.segments)
        self.close = weakref.finalize(self, free_net, self.net, tuple(self._pools.values()))
        """Free the net, at the latest when nothing refers to the chain any more."""

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with one sample (1, C, H, W)."""
        extractor = self.net.create_extractor()
        for name, values in zip(self.inputs, unpacked(x_NCHW), strict=True):
            # a Mat over numpy's memory lacks ncnn's alignment and crashes vector code; the clone has it
            extractor.input(name, self._matrix_of(values[0]).clone())
        return _NcnnRun(self, extractor)


def free_net(net: Any, pools: Sequence[Any]) -> None:
    """Free a net, then its memory pools: the other order crashes."""
    net.clear()
    for pool in pools:
        pool.clear()


class _NcnnRun:
    __slots__ = ("_chain", "_extractor", "_outputs")

    def __init__(self, chain: NcnnChain, extractor: Any) -> None:
        self._chain, self._extractor, self._outputs = chain, extractor, iter(chain.outputs)

    def __del__(self) -> None:
        """Free the extractor before the net, which may be freed with this run."""
        self._extractor = None

    def next(self) -> Array:
        name = next(self._outputs)
        status, answer = self._extractor.extract(name)
        if status != 0:
            raise AdaptiveError(f"output '{name}'", f"ncnn failed with code {status}")
        found: Array = np.array(answer).reshape(1, -1)
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        assert mask_N.all(), "one sample goes on or not"
