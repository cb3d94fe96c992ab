"""Runs of a chain behind one protocol: segment after segment, in onnxruntime by files, in ncnn by one net.

The runtimes are imported when a chain is opened. Legend: N samples, K classes.
"""

import importlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.chains.manifest import ChainFormat, ChainManifest
from adaptive_runtime.errors import AdaptiveError

Array = NDArray[np.float32]
POOLS = ("blob_allocator", "workspace_allocator")
NO_ALLOCATOR = "none"
RUNTIMES: Mapping[ChainFormat, str] = {"onnx": "onnxruntime", "ncnn": "ncnn"}
ENUMERATIONS = {
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
}


class ChainRun(Protocol):
    """Samples on their way. `next`: the answer (N, K) at the next exit. `keep`: only these samples (N,) go on."""

    def next(self) -> Array: ...

    def keep(self, mask_N: NDArray[np.bool_]) -> None: ...


class ChainRuntime(Protocol):
    """A chain that is loaded. batch: samples of one run; None: any number. `start`: with samples (N, C, H, W)."""

    @property
    def batch(self) -> int | None: ...

    def start(self, x_NCHW: Array) -> ChainRun: ...

    def close(self) -> None: ...


def session_options(settings: Mapping[str, bool | int | str]) -> Any:
    """`onnxruntime.SessionOptions` with settings by the names of its API; names with a dot are entries of its configuration."""
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
    """The settings of a chain, where they are of this runtime."""
    return manifest.settings if manifest.runtime == runtime else {}


def run_session(session: Any, given: Mapping[str, Any], outputs: Sequence[str]) -> Sequence[Any]:
    """Outputs of a session in onnxruntime by their names, from inputs by theirs: each an `OrtValue`, which is not copied.

    A binding costs a quarter of the time that `run_with_ort_values` takes beside the run.
    """
    binding = session.io_binding()
    for name, value in given.items():
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    found: Sequence[Any] = binding.get_outputs()
    return found


class OnnxChain:
    """Segments in onnxruntime, one session each. Values go from one to the next without a copy.

    session_of: the session of a segment by its place, asked for when the segment runs.
    """

    def __init__(self, manifest: ChainManifest, session_of: Callable[[int], Any]) -> None:
        import onnxruntime

        self.batch = manifest.input.shape[0]
        self.input = manifest.input.name
        self.value_of = onnxruntime.OrtValue.ortvalue_from_numpy
        self.session_of = session_of
        self.names = [
            tuple(tuple(one.name for one in each) for each in (segment.inputs, segment.outputs))
            for segment in manifest.segments
        ]

    @classmethod
    def open(cls, manifest: ChainManifest, folder: Path) -> Self:
        """With all sessions."""
        import onnxruntime

        options = session_options(own_settings(manifest, "onnxruntime"))
        sessions = [
            onnxruntime.InferenceSession(folder / str(segment.file), options, providers=["CPUExecutionProvider"])
            for segment in manifest.segments
        ]
        return cls(manifest, sessions.__getitem__)

    def start(self, x_NCHW: Array) -> ChainRun:
        """Samples (N, C, H, W) at the start."""
        return _OnnxRun(self, x_NCHW)

    def close(self) -> None:
        """Free the sessions."""
        del self.session_of


class _OnnxRun:
    __slots__ = ("_at", "_chain", "_value_of", "_values")

    def __init__(self, chain: OnnxChain, x_NCHW: Array) -> None:
        self._chain, self._at = chain, 0
        self._value_of = chain.value_of
        self._values = {chain.input: chain.value_of(x_NCHW)}

    def next(self) -> Array:
        inputs, outputs = self._chain.names[self._at]
        session = self._chain.session_of(self._at)
        self._at += 1
        values = self._values
        given = run_session(session, {name: values[name] for name in inputs}, outputs)
        values.update(zip(outputs, given, strict=True))
        found: Array = given[0].numpy()
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        self._values = {name: self._value_of(value.numpy()[mask_N]) for name, value in self._values.items()}


class NcnnChain:
    """One net in ncnn, one sample at a time: to extract an answer computes what is missing, and nothing twice."""

    batch = 1

    def __init__(self, manifest: ChainManifest, folder: Path) -> None:
        import ncnn

        self._matrix_of = ncnn.Mat
        self.net = ncnn.Net()
        settings = own_settings(manifest, "ncnn")
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
        self.input = manifest.input.name
        self.outputs = tuple(segment.outputs[0].name for segment in manifest.segments)
        self.close = weakref.finalize(self, free_net, self.net, tuple(self._pools.values()))
        """Free the net, at the latest when nothing refers to the chain any more."""

    def start(self, x_NCHW: Array) -> ChainRun:
        """One sample (1, C, H, W) at the start."""
        extractor = self.net.create_extractor()
        # a Mat over numpy's memory lacks ncnn's alignment and crashes vector code; the clone has it
        extractor.input(self.input, self._matrix_of(x_NCHW[0]).clone())
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
        """Free the extractor before the net, which may go with this run."""
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


def require_runtime(form: ChainFormat, where: str) -> None:
    """Import the runtime of a format. AdaptiveError where it is not installed."""
    try:
        importlib.import_module(RUNTIMES[form])
    except ImportError as error:
        needed = RUNTIMES[form]
        raise AdaptiveError(
            where, f"needs {needed}, which is not installed", next_step=f"pip install {needed}"
        ) from error


def load(manifest: ChainManifest, folder: Path) -> ChainRuntime:
    """The chain in its runtime. AdaptiveError where that is not installed or cannot load it."""
    require_runtime(manifest.format, str(folder))
    return OnnxChain.open(manifest, folder) if manifest.format == "onnx" else NcnnChain(manifest, folder)
