"""Networks with states on the device, such as those of streaming sound: an exported .onnx file that keeps them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import TENSOR_TYPES
from adaptive_runtime.base.errors import AdaptiveError

STATES_KEY = "autotailor.states"
"""The states {INPUT: OUTPUT} of an exported file as JSON, in its metadata."""


class StatefulNetwork:
    """A network in an exported .onnx file that keeps its states from call to call. They begin at zeros.

    Each stream of samples has its own object; the samples of a batch are steps of so many streams. Calls come one by one.
    """

    def __init__(self, file: Path | str, states: Mapping[str, str] | None = None, options: Any = None) -> None:
        """Open a file.

        states: {INPUT: OUTPUT}, (B, …) as samples; None: those that the file tells. options: `onnxruntime.SessionOptions`.
        AdaptiveError: it cannot be read, or has no such states.
        """
        import onnxruntime

        where = f"network '{file}'"
        try:
            session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises errors of many kinds
            raise AdaptiveError(where, f"onnxruntime cannot read it ({str(error).splitlines()[0]})") from error
        known = session.get_modelmeta().custom_metadata_map.get(STATES_KEY)
        if states is None and known is None:
            raise AdaptiveError(where, "it tells no states", next_step="name them: states={INPUT: OUTPUT}")
        self.states: dict[str, str] = dict(json.loads(known or "{}") if states is None else states)
        self._where, self._session = where, session
        self._inputs = {one.name: one for one in session.get_inputs()}
        self._outputs = [one.name for one in session.get_outputs()]
        if not (self.states.keys() <= self._inputs.keys() and {*self.states.values()} <= {*self._outputs}):
            allowed = f"INPUT of {', '.join(self._inputs)}: OUTPUT of {', '.join(self._outputs)}"
            raise AdaptiveError(where, f"states {self.states}", allowed=allowed)
        self._kept: dict[str, NDArray[Any]] = {}

    def reset(self) -> None:
        """Let the states begin at zeros anew, for another stream."""
        self._kept = {}

    def __call__(self, samples: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """The outputs (B, …) for the next step of B streams, by name, without the states. samples: (B, …) by input.

        AdaptiveError: other inputs, or another number of streams than before.
        """
        own = [name for name in self._inputs if name not in self.states]
        if set(samples) != set(own):
            raise AdaptiveError(self._where, f"inputs {', '.join(samples) or 'none'}", allowed=", ".join(own))
        streams = len(next(iter(samples.values())))
        kept = self._kept or {name: self._zeros(name, streams) for name in self.states}
        if any(len(state) != streams for state in kept.values()):
            got = f"{streams} samples for {len(next(iter(kept.values())))} streams"
            raise AdaptiveError(self._where, got, allowed="one for each", next_step="reset() begins other streams")
        found = dict(zip(self._outputs, self._session.run(self._outputs, {**samples, **kept}), strict=True))
        self._kept = {name: found[output] for name, output in self.states.items()}
        return {name: one for name, one in found.items() if name not in self.states.values()}

    def _zeros(self, name: str, streams: int) -> NDArray[Any]:
        one = self._inputs[name]
        sizes = [size if isinstance(size, int) else streams for size in one.shape]
        return np.zeros(sizes, TENSOR_TYPES[one.type])
