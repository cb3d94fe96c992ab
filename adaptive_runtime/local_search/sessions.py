"""Segments in onnxruntime, loaded on demand; the least recently used are freed when memory is needed."""

from collections import OrderedDict
from typing import Any

from adaptive_runtime.bundle.bundles import BlocksManifest, OpenBundle
from adaptive_runtime.bundle.chains import session_options
from adaptive_runtime.local_search.prefixes import Array
from adaptive_runtime.pool.memory import give_back, resident_mib
from profiling_agents.messages import MIB

FLOAT_BYTES = 4
LOADING = 4.0
"""Upper limit of the memory for loading a session, in multiples of its weights.

Weights are read and reordered for the kernels. Measured: 3.6 for a segment of 6 MiB, of which 1.6 stay.
"""


class SegmentSessions:
    """Sessions of a bundle's segments. cap_mib: limit of memory that the process may add from now on; None: no limit.

    loads: number of loads so far. peak_mib: highest added memory, sampled when segments are loaded.
    """

    def __init__(self, bundle: OpenBundle, blocks: BlocksManifest, cap_mib: float | None = None) -> None:
        self.bundle, self.blocks, self.cap_mib = bundle, blocks, cap_mib
        self.loads, self.peak_mib = 0, 0.0
        self._options = session_options(bundle.manifest.runs["onnx"].settings)
        self._sessions: OrderedDict[int, Any] = OrderedDict()
        self._start_mib = resident_mib()

    def run(self, number: int, x: Array) -> Array:
        """The output of a segment for one batch."""
        session = self._session(number)
        (found,) = session.run(None, {self.blocks.segments[number].input.name: x})
        given: Array = found
        return given

    @property
    def used_mib(self) -> float:
        """Memory that the process has added since this was created [MiB]; if it cannot be measured, the loaded weights."""
        now_mib = resident_mib()
        if now_mib is None or self._start_mib is None:
            return sum(self.blocks.segments[number].bytes for number in self._sessions) / MIB
        return max(0.0, now_mib - self._start_mib)

    def free(self) -> None:
        """Free all sessions."""
        self._sessions.clear()
        give_back()

    def _session(self, number: int) -> Any:
        if number in self._sessions:
            self._sessions.move_to_end(number)
            return self._sessions[number]
        import onnxruntime

        segment = self.blocks.segments[number]
        self._make_room(LOADING * segment.bytes / MIB)
        file, _ = self.bundle.verified(segment.file, self.blocks.weights)
        session = onnxruntime.InferenceSession(file, self._options, providers=["CPUExecutionProvider"])
        self._sessions[number] = session
        self.loads += 1
        self._look()
        give_back()
        self._make_room(0.0)
        return session

    def _look(self) -> float:
        used_mib = self.used_mib
        self.peak_mib = max(self.peak_mib, used_mib)
        return used_mib

    def _make_room(self, need_mib: float) -> None:
        used_mib = self._look()
        while self.cap_mib is not None and used_mib + need_mib > self.cap_mib and len(self._sessions) > 1:
            self._sessions.popitem(last=False)
            give_back()
            used_mib = self.used_mib
