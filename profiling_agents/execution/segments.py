"""Segments of a SubNet that stay loaded in the child process, inside its sandbox, and run one behind the other.

The frames are the same as in `bench`; payloads are tensors in the coding of the stream.
"""

import time
from collections.abc import Sequence

import numpy as np

from profiling_agents.backends.base import Backend, Model, ModelError
from profiling_agents.execution.bench import load, serve_requests
from profiling_agents.execution.settings import WorkerSettings
from profiling_agents.messages import ChildReply, ChildSegments, ServedSubNet
from profiling_agents.sandbox.entering import SandboxReport
from profiling_agents.streams.activations import FloatArray, decoded_all, encoded


def serve(argument: str, report: SandboxReport) -> int:
    """Open the runtime, then load a SubNet and run its segments. report: the sandbox of this process."""
    settings = WorkerSettings.model_validate_json(argument)
    loaded: list[_LoadedSegments] = []

    def answer(backend: Backend, request: ChildSegments, payload: bytes) -> tuple[ChildReply, bytes]:
        if request.load is not None:
            assert not loaded, "a child serves one SubNet"
            loaded.append(_LoadedSegments(backend, request.load))
            return ChildReply(), b""
        return loaded[0].run(request, payload)

    return serve_requests(settings, report, ChildSegments, answer)


class _LoadedSegments:
    """The models of a SubNet, each run once when it is loaded."""

    def __init__(self, backend: Backend, subnet: ServedSubNet) -> None:
        self.subnet, self.shapes = subnet, subnet.shapes
        self.models: list[Model] = []
        for number, segment in enumerate(subnet.segments):
            self.models.append(load(backend, segment))
            self._outputs(number, [np.zeros(shape, np.float32) for shape in segment.input_shapes])

    def run(self, request: ChildSegments, payload: bytes) -> tuple[ChildReply, bytes]:
        """The values that leave the segments of the request, computed from the values that enter."""
        start_s = time.perf_counter()
        names = self.subnet.entering(request.first, request.last)
        tensors = decoded_all(request.tensors, [self.shapes[name] for name in names], payload)
        values = dict(zip(names, tensors, strict=True))
        for number in range(request.first, request.last + 1):
            segment = self.subnet.segments[number]
            outputs = self._outputs(number, [values[name] for name in segment.input_names])
            values |= zip(segment.output_names, outputs, strict=True)
        left = [encoded(values[name], request.coding) for name in self.subnet.leaving(request.first, request.last)]
        computed_ms = (time.perf_counter() - start_s) * 1e3
        reply = ChildReply(activations=tuple(one for one, _ in left), computed_ms=computed_ms)
        return reply, b"".join(content for _, content in left)

    def _outputs(self, number: int, inputs: Sequence[FloatArray]) -> list[FloatArray]:
        """Outputs of one segment; ModelError for shapes or types other than the SubNet's."""
        segment = self.subnet.segments[number]
        outputs = self.models[number].run(inputs)
        for name, tensor in zip(segment.output_names, outputs, strict=True):
            if tensor.dtype != np.float32 or tensor.shape != self.shapes[name]:
                got = f"{tensor.dtype} {tensor.shape}"
                raise ModelError(f"segment {number} gives '{name}' as {got}; the SubNet states {self.shapes[name]}")
        return outputs
