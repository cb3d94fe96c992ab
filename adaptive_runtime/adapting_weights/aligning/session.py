"""A session of onnxruntime that aligns its images: weights and alignment are one value, so a run has both or neither."""

from collections.abc import Sequence
from typing import Any

from adaptive_runtime.adapting_weights.aligning.images import ImageAlignment


class AlignedSession:
    """A session of one input as chains run it (`adaptive_runtime.chains.run_session`); each image is aligned first."""

    def __init__(self, session: Any, alignment: ImageAlignment) -> None:
        self.session, self.alignment = session, alignment

    def io_binding(self) -> "AlignedBinding":
        """For one run."""
        return AlignedBinding(self.session.io_binding(), self.alignment)

    def run_with_iobinding(self, bound: "AlignedBinding") -> None:
        """Run with images that were aligned when they were bound."""
        self.session.run_with_iobinding(bound.binding)


class AlignedBinding:
    """Inputs and outputs of one run."""

    def __init__(self, binding: Any, alignment: ImageAlignment) -> None:
        self.binding, self._alignment = binding, alignment
        self._aligned: Any = None  # whose memory the runtime reads

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        """Images (B, C, H, W)."""
        self._aligned = type(value).ortvalue_from_numpy(self._alignment(value.numpy()))
        self.binding.bind_ortvalue_input(name, self._aligned)

    def bind_output(self, name: str) -> None:
        """An output by its name."""
        self.binding.bind_output(name)

    def get_outputs(self) -> Sequence[Any]:
        """After the run."""
        found: Sequence[Any] = self.binding.get_outputs()
        return found
