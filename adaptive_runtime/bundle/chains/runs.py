"""The runtimes of chains: their protocol and settings, and ncnn, where one net continues from its computed values.

Runtimes are imported on first use.

Legend: N samples, C channels, H height, W width, K classes.
"""

import importlib
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

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
