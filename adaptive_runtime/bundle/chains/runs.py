"""Runs of a chain behind one protocol: segment after segment. Settings of runtimes, which are imported on first use.

Legend: N samples, K classes.
"""

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.chains.manifest import ChainFormat, ChainManifest

Array = NDArray[np.float32]
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
