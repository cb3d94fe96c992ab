"""Answers of SubNets for the user's images, in chunks of images, for all SubNets of a generation together.

Legend: n SubNets, N samples, K classes, E segments.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.bundles import BlocksManifest
from adaptive_runtime.local_search.prefixes import Array, PrefixTree, RunCounts
from adaptive_runtime.local_search.samples import OwnImages
from adaptive_runtime.local_search.sessions import FLOAT_BYTES, SegmentSessions
from adaptive_runtime.local_search.space import Floats, Path
from profiling_agents.messages import MIB

LEAST_KEPT_MIB = 1.0
MOST_CHUNK = 512


class PathScore(NamedTuple):
    """Score of one SubNet. accuracy: share of images answered as labelled. loss: mean cross-entropy with labels."""

    accuracy: float
    loss: float


class OwnEvaluation:
    """Evaluates SubNets. Without labels the largest SubNet's answers count as right. kept_mib: memory for features [MiB]."""

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

    def scores(self, paths: Sequence[Path]) -> list[PathScore]:
        """The score of each SubNet on all images."""
        right_nN = np.zeros((len(paths), len(self.data)), bool)
        losses_nN = np.zeros(right_nN.shape)  # kept as a whole, so that sums do not depend on chunks
        labels = self.labels
        for start, number, logits_NK in self._logits(paths):
            part = slice(start, start + len(logits_NK))
            right_nN[number, part] = logits_NK.argmax(1) == labels[part]
            losses_nN[number, part] = _losses(logits_NK, labels[part])
        means = zip(right_nN.mean(1), losses_nN.mean(1), strict=True)
        return [PathScore(float(accuracy), float(loss)) for accuracy, loss in means]

    @property
    def labels(self) -> NDArray[np.int64]:
        """The labels (N,); without labels, the answers of the largest SubNet."""
        if self._labels is None:
            parts = [logits_NK.argmax(1) for _, _, logits_NK in self._logits([self.blocks.largest])]
            self._labels = np.concatenate(parts)
        return self._labels

    def _logits(self, paths: Sequence[Path]) -> Iterator[tuple[int, int, Array]]:
        """For each chunk of images and each SubNet: start of the chunk, the SubNet's position, logits (N, K)."""
        for start in range(0, len(self.data), self._chunk):
            x_NCHW = np.ascontiguousarray(self.data.images[start : start + self._chunk])
            batches = [self._filled(x_NCHW[at : at + self._batch]) for at in range(0, len(x_NCHW), self._batch)]
            for number, logits_NK in self.tree.logits(paths, batches):
                yield start, number, logits_NK[: len(x_NCHW)]

    def _filled(self, x_NCHW: Array) -> Array:
        """A full batch; missing images are filled up with copies of the last one."""
        missing = self._batch - len(x_NCHW)
        return np.concatenate([x_NCHW, np.repeat(x_NCHW[-1:], missing, axis=0)]) if missing else x_NCHW

    def _chunk_size(self, kept_mib: float) -> int:
        """Images per chunk, so that the features of a chunk at two boundaries fit into the memory."""
        sizes = [int(np.prod([size or 1 for size in one.output.shape])) for one in self.blocks.segments]
        sample_bytes = FLOAT_BYTES * max(sizes) / self._batch
        fitting = int(kept_mib * MIB / (2 * sample_bytes))
        return max(1, min(fitting, MOST_CHUNK) // self._batch) * self._batch


def _losses(logits_NK: Array, labels_N: NDArray[np.int64]) -> Floats:
    """The cross-entropy of each sample."""
    shifted_NK = logits_NK.astype(np.float64) - logits_NK.max(1, keepdims=True)
    found: Floats = np.log(np.exp(shifted_NK).sum(1)) - shifted_NK[np.arange(len(labels_N)), labels_N]
    return found
