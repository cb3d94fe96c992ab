"""Right answers of SubNets on the user's images, a chunk of images after the other, all SubNets of a generation together.

Legend: n SubNets, N samples, K classes, E segments.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundles import BlocksManifest
from adaptive_runtime.local_search.prefixes import Array, PrefixTree, RunCounts
from adaptive_runtime.local_search.samples import OwnImages
from adaptive_runtime.local_search.sessions import FLOAT_BYTES, SegmentSessions
from adaptive_runtime.local_search.space import Floats, Path
from profiling_agents.messages import MIB

LEAST_KEPT_MIB = 1.0
MOST_CHUNK = 64


class OwnEvaluation:
    """Evaluates SubNets. Without labels the largest SubNet's answers are the right ones. kept_mib: for features."""

    def __init__(
        self,
        sessions: SegmentSessions,
        blocks: BlocksManifest,
        data: OwnImages,
        ms_E: Floats,
        kept_mib: float = LEAST_KEPT_MIB,
    ) -> None:
        self.blocks, self.data = blocks, data
        self._batch = blocks.segments[0].input.shape[0] or 1
        self.tree = PrefixTree(sessions.run, ms_E, kept_mib * MIB)
        self._chunk = self._chunk_size(kept_mib)
        self._labels: NDArray[np.int64] | None = data.labels

    @property
    def counts(self) -> RunCounts:
        """Runs of segments so far."""
        return self.tree.counts

    def right(self, paths: Sequence[Path]) -> list[int]:
        """How many images each SubNet answers as their labels say."""
        found = np.zeros(len(paths), np.int64)
        for start, classes_nN in self._answers(paths):
            labels_N = self.labels[start : start + classes_nN.shape[1]]
            found += (classes_nN == labels_N).sum(1)
        return [int(one) for one in found]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels (N,); without any, those that the largest SubNet answers."""
        if self._labels is None:
            self._labels = np.concatenate([classes_1N[0] for _, classes_1N in self._answers([self.blocks.largest])])
        return self._labels

    def _answers(self, paths: Sequence[Path]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """For each chunk of images: where it starts, and classes (n, N)."""
        for start in range(0, len(self.data), self._chunk):
            x_NCHW = np.ascontiguousarray(self.data.images[start : start + self._chunk])
            batches = [self._filled(x_NCHW[at : at + self._batch]) for at in range(0, len(x_NCHW), self._batch)]
            yield start, self.tree.classes(paths, batches)[:, : len(x_NCHW)]

    def _filled(self, x_NCHW: Array) -> Array:
        """A whole batch; the last image is there again where some are missing."""
        missing = self._batch - len(x_NCHW)
        return np.concatenate([x_NCHW, np.repeat(x_NCHW[-1:], missing, axis=0)]) if missing else x_NCHW

    def _chunk_size(self, kept_mib: float) -> int:
        """So many images that the features of a chunk at two boundaries take no more memory than there is."""
        sizes = [int(np.prod([size or 1 for size in one.output.shape])) for one in self.blocks.segments]
        sample_bytes = FLOAT_BYTES * max(sizes) / self._batch
        fitting = int(kept_mib * MIB / (2 * sample_bytes))
        return max(1, min(fitting, MOST_CHUNK) // self._batch) * self._batch
