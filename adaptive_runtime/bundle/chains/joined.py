"""ONNX files that run one behind the other, as one segment.

Legend: N samples, C channels, H height, W width, K classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.chains.manifest import ChainManifest
from adaptive_runtime.bundle.chains.onnx_runs import run_session
from adaptive_runtime.bundle.chains.runs import Array, ChainRun


class JoinedFiles:
    """A SubNet in several files in onnxruntime; each reads the output of the previous one.

    session_of: returns the session of a file by its position; called when the file runs.
    """

    def __init__(self, manifest: ChainManifest, count: int, session_of: Callable[[int], Any]) -> None:
        import onnxruntime

        self.batch = manifest.input.shape[0]
        self.count, self.session_of = count, session_of
        self.value_of = onnxruntime.OrtValue.ortvalue_from_numpy

    def start(self, x_NCHW: Array) -> ChainRun:
        """A run at its start, with samples (N, C, H, W)."""
        return _JoinedRun(self, x_NCHW)

    def close(self) -> None:
        """Free the sessions."""
        del self.session_of


class _JoinedRun:
    __slots__ = ("_chain", "_x")

    def __init__(self, chain: JoinedFiles, x_NCHW: Array) -> None:
        self._chain, self._x = chain, x_NCHW

    def next(self) -> Array:
        """The answer (N, K)."""
        value = self._chain.value_of(self._x)
        for at in range(self._chain.count):
            value = run_file(self._chain.session_of(at), value)
        found: Array = value.numpy().copy()
        return found

    def keep(self, mask_N: NDArray[np.bool_]) -> None:
        self._x = self._x[mask_N]


def run_file(session: Any, value: Any) -> Any:
    """Run a file with one input and one output: an `OrtValue` from an `OrtValue`."""
    (taken,), (given,) = session.get_inputs(), session.get_outputs()
    (found,) = run_session(session, {taken.name: value}, [given.name])
    return found
