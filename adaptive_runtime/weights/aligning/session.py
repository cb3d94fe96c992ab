"""An onnxruntime session with alignment: weights and alignment are one value, so each run uses both or neither."""

from collections.abc import Sequence
from typing import Any

from adaptive_runtime.weights.aligning.images import ImageAlignment


class AlignedSession:
    """A session with one input, for chains (`adaptive_runtime.bundle.chains.onnx_runs`); each image is aligned first."""

    def __init__(self, session: Any, alignment: ImageAlignment) -> None:
        self.session, self.alignment = session, alignment

    def io_binding(self) -> "AlignedBinding":
        """A binding for one run."""
        return AlignedBinding(self.session.io_binding(), self.alignment)

    def run_with_iobinding(self, bound: "AlignedBinding") -> None:
        """Run with images that were aligned when they were bound."""
        self.session.run_with_iobinding(bound.binding)


class AlignedBinding:
    """Inputs and outputs of one run."""

    def __init__(self, binding: Any, alignment: ImageAlignment) -> None:
        self.binding, self._alignment = binding, alignment
        self._aligned: Any = None  # keeps the memory alive that the runtime reads

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Align and bind images (B, C, H, W)."""
        self._aligned = type(value).ortvalue_from_numpy(self._alignment(value.numpy()))
        self.binding.bind_ortvalue_input(name, self._aligned)

    def bind_output(self, name: str) -> None:
        """Bind an output by its name."""
        self.binding.bind_output(name)

    def get_outputs(self) -> Sequence[Any]:
        """The outputs after the run."""
        found: Sequence[Any] = self.binding.get_outputs()
        return found
