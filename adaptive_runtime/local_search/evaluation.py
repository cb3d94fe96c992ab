"""Evaluation of SubNets on a device: the user's images, sessions of segments, scores, latencies, and saved state.

Images are an .npz file, or a folder of .npy files that is read piece by piece, with or without labels; they are never
written. All SubNets of a generation answer in chunks of images together. Segments run in onnxruntime, loaded on demand;
the least recently used are freed when memory is needed. A file has the evaluated SubNets: it is written completely
after each generation, and read when the search resumes. Latencies of segments are measured once, one segment after the
other, and saved in a file.

Legend: n SubNets, N samples, C channels, H height, W width, K classes, E segments.
"""

import hashlib
import time
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive_runtime.base.arrays import FLOAT_BYTES, Array, Values
from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage, replace_file
from adaptive_runtime.base.process import give_back, resident_mib
from adaptive_runtime.bundle.bundles import BlocksManifest, OpenBundle
from adaptive_runtime.bundle.chains import session_options
from adaptive_runtime.local_search.space import PrefixTree, RunCounts, SegmentPath
from profiling_agents.messages import MIB, Digest, Message

ALLOWED = "x float32 (N, C, H, W), prepared as blocks.json says; y whole numbers (N,), or none"
PIECE = 256


@dataclass(frozen=True, slots=True)
class OwnImages:
    """images (N, C, H, W), float32; labels (N,), or None."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | None

    @classmethod
    def read(cls, source: Path | IO[bytes], shape: tuple[int, ...], classes: int) -> Self:
        """Read `x` and `y` from an .npz file, or `x.npy` and `y.npy` from a folder. AdaptiveError: they do not fit.

        shape: (C, H, W) of the network's input. classes: number of possible labels.
        """
        where = str(source) if isinstance(source, Path) else "images"
        try:
            images, labels = _folder(source) if isinstance(source, Path) and source.is_dir() else _archive(source)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise AdaptiveError(where, f"cannot be read ({error})", allowed=ALLOWED) from error
        if images.dtype != np.float32 or images.ndim != 4 or images.shape[1:] != shape or not len(images):
            got = f"x is {images.dtype} {images.shape}".replace("'", "")
            raise AdaptiveError(where, got, allowed=f"float32 (N, {', '.join(map(str, shape))}), N from 1 on")
        if labels is None:
            return cls(images, None)
        if labels.shape != images.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
            got = f"y is {labels.dtype} {labels.shape}"
            raise AdaptiveError(where, got, allowed=f"whole numbers ({len(images)},)")
        if labels.min() < 0 or labels.max() >= classes:
            raise AdaptiveError(where, f"y from {labels.min()} to {labels.max()}", allowed=f"0 to {classes - 1}")
        return cls(images, labels.astype(np.int64))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def digest(self) -> str:
        """Hash that identifies these images; they cannot be restored from it."""
        found = hashlib.sha256(repr(self.images.shape).encode())
        for start in range(0, len(self.images), PIECE):
            found.update(np.ascontiguousarray(self.images[start : start + PIECE]).data)
        if self.labels is not None:
            found.update(self.labels.tobytes())
        return found.hexdigest()


def _folder(folder: Path) -> tuple[np.ndarray, np.ndarray | None]:
    file = folder / "y.npy"
    labels = np.load(file, allow_pickle=False) if file.exists() else None
    return np.load(folder / "x.npy", mmap_mode="r", allow_pickle=False), labels


def _archive(source: Path | IO[bytes]) -> tuple[np.ndarray, np.ndarray | None]:
    with np.load(source, allow_pickle=False) as arrays:
        return arrays["x"], arrays.get("y")


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
        ms_E: Values,
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

    def scores(self, paths: Sequence[SegmentPath]) -> list[PathScore]:
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

    def _logits(self, paths: Sequence[SegmentPath]) -> Iterator[tuple[int, int, Array]]:
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


def _losses(logits_NK: Array, labels_N: NDArray[np.int64]) -> Values:
    """The cross-entropy of each sample."""
    shifted_NK = logits_NK.astype(np.float64) - logits_NK.max(1, keepdims=True)
    found: Values = np.log(np.exp(shifted_NK).sum(1)) - shifted_NK[np.arange(len(labels_N)), labels_N]
    return found


STATE_FILE = "search.json"
VERSION = 2


class EvaluatedPath(Message):
    """A SubNet by its segments; accuracy and loss are those of `PathScore`."""

    path: tuple[int, ...]
    accuracy: float = Field(ge=0, le=1)
    loss: float = Field(ge=0)

    @property
    def score(self) -> PathScore:
        """The score without the path."""
        return PathScore(self.accuracy, self.loss)


class SearchState(FileMessage):
    """A search after some generations. key: digest of bundle, settings, images and latencies; it identifies the search.

    largest: the largest SubNet. Sums over all runs: runs, alone, run_ms, alone_ms as in `RunCounts`. The state contains neither
    images nor labels.
    """

    WHERE: ClassVar[str] = STATE_FILE
    NEXT_STEP: ClassVar[str] = "remove it"
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "a search"

    version: int = VERSION
    key: Digest
    generation: int = Field(0, ge=0)
    largest: EvaluatedPath | None = None
    evaluated: tuple[EvaluatedPath, ...] = ()
    runs: int = 0
    alone: int = 0
    run_ms: float = 0.0
    alone_ms: float = 0.0

    def write(self, folder: Path) -> None:
        """Save the state in the folder of the search."""
        write_whole(folder / STATE_FILE, self.model_dump_json(indent=1))

    @classmethod
    def open(cls, folder: Path, key: str) -> "SearchState":
        """The saved state with this key; a new state if none exists, or if it belongs to another search."""
        file = folder / STATE_FILE
        if file.exists():
            try:
                found = cls.from_file(file)
            except AdaptiveError:
                return cls(key=key)
            if found.key == key:
                return found
        return cls(key=key)


def write_whole(file: Path, text: str) -> None:
    """Write a file whole or not at all. AdaptiveError: it cannot be written."""
    try:
        replace_file(file, text)
    except OSError as error:
        raise AdaptiveError(
            str(file), f"cannot be written ({error.strerror})", next_step="give another folder"
        ) from error


LATENCIES_FILE = "latencies.json"
LATENCIES_VERSION = 1
WARM_UP_RUNS, FEWEST_RUNS, MOST_RUNS = 3, 10, 200
SEGMENT_S = 0.05


class SegmentLatencies(FileMessage):
    """Median per segment [ms], by its position.

    bundle: digest of its manifest. runtime: version of onnxruntime. took_s: time to measure all segments.
    """

    WHERE: ClassVar[str] = LATENCIES_FILE
    NEXT_STEP: ClassVar[str] = "remove it"
    READ_VERSION: ClassVar[int | None] = LATENCIES_VERSION
    CONTENT: ClassVar[str] = "latencies"

    version: int = LATENCIES_VERSION
    bundle: Digest
    runtime: str
    p50_ms: tuple[float, ...]
    took_s: float

    @property
    def ms_E(self) -> Values:
        """The medians as an array (E,)."""
        return np.array(self.p50_ms)


def known_latencies(bundle: OpenBundle, blocks: BlocksManifest, folder: Path) -> SegmentLatencies:
    """Latencies from the folder of a search; measured now if missing, or if of another bundle or runtime."""
    import onnxruntime

    file = folder / LATENCIES_FILE
    if file.exists():
        try:
            found = SegmentLatencies.from_file(file)
            if (found.bundle, found.runtime) == (bundle.digest, onnxruntime.__version__):
                return found
        except AdaptiveError:
            file.unlink(missing_ok=True)
    sessions = SegmentSessions(bundle, blocks)
    start_s = time.perf_counter()
    times_ms = []
    for number in range(len(blocks.segments)):
        times_ms.append(measured_ms(sessions, blocks, (number,)))
        sessions.free()
    took_s = time.perf_counter() - start_s
    measured = SegmentLatencies(
        bundle=bundle.digest, runtime=onnxruntime.__version__, p50_ms=tuple(times_ms), took_s=took_s
    )
    write_whole(file, measured.model_dump_json(indent=1))
    return measured


def measured_ms(sessions: SegmentSessions, blocks: BlocksManifest, path: tuple[int, ...]) -> float:
    """The median duration of consecutive segments [ms], after warm-up runs."""
    return median(samples_ms(sessions, blocks, path))


def samples_ms(sessions: SegmentSessions, blocks: BlocksManifest, path: tuple[int, ...]) -> list[float]:
    """The durations of single runs [ms]."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal(tuple(size or 1 for size in blocks.segments[path[0]].input.shape), np.float32)
    found: list[float] = []
    until_s = time.perf_counter() + SEGMENT_S
    for turn in range(WARM_UP_RUNS + MOST_RUNS):
        start_ns, value = time.perf_counter_ns(), x
        for number in path:
            value = sessions.run(number, value)
        if turn >= WARM_UP_RUNS:
            found.append((time.perf_counter_ns() - start_ns) / 1e6)
        if len(found) >= FEWEST_RUNS and time.perf_counter() > until_s:
            break
    return found
