"""Accuracy of SubNets, each with its own BatchNorm statistics, taken from training images, never shared."""

import base64
import copy
import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, Protocol, TypedDict, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from profiling_agents.messages import MIB
from tailor_ir import Config, Statistics
from tailor_ir.subnets.prefixes import Prefixes, groups
from tasks.artifacts import SubNetLines, SubNetStore, digest_of, read_lines
from tasks.data import Batch, Dataset
from tasks.data.batches import Inputs, answers, rows
from tasks.data.images import resize
from tasks.data.samples import Size, placed
from tasks.evaluation.recipe import EvaluationRecipe
from tasks.evaluation.statistics import KnownStatistics
from tasks.problems import CLASSIFICATION, LearningProblem, Tallied, other_metric
from tasks.progress import Progress

Item = TypeVar("Item")
CALIBRATION_SEED = 0
MOST_TOGETHER = 32
"""SubNets that are evaluated together, and so that a killed run loses at most; more would share little more."""
UPDATE_SECONDS = 1.0


class EvaluatedLine(TypedDict):
    """A line of a file of accuracies: a SubNet, and its `Accuracy`."""

    digest: str
    config: Config
    correct: float
    total: int
    loss: float
    hits: str
    scores: NotRequired[str]


class Accuracy(NamedTuple):
    """Correct answers for `total` images, and the mean loss.

    correct: as many as are classified correctly; where answers are more or less good, `total` times the learning problem's
    score (`tasks.problems.Tallied`). hits: which are classified correctly, bits in base64. scores: those of single images
    in other problems, float16 in base64.
    """

    correct: float
    total: int
    loss: float
    hits: str = ""
    scores: str = ""

    @classmethod
    def of(cls, line: EvaluatedLine) -> "Accuracy":
        """The accuracy in a line of a file."""
        return cls(line["correct"], line["total"], line["loss"], line["hits"], line.get("scores", ""))

    @classmethod
    def tallied(cls, found: Tallied) -> "Accuracy":
        """The accuracy of a network whose answers are tallied."""
        total = len(found.each_N)
        if found.each_N.dtype == np.bool_:
            right_N = found.each_N.astype(np.bool_)
            hits = base64.b64encode(np.packbits(right_N).tobytes()).decode()
            return cls(int(right_N.sum()), total, found.loss, hits)
        scores = base64.b64encode(found.each_N.astype("<f2").tobytes()).decode()
        return cls(found.score * total, total, found.loss, scores=scores)

    def line(self, digest: str, config: Config) -> EvaluatedLine:
        """The accuracy of a SubNet, as a file has it."""
        line = EvaluatedLine(
            digest=digest, config=config, correct=self.correct, total=self.total, loss=self.loss, hits=self.hits
        )
        if self.scores:
            line["scores"] = self.scores
        return line

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether each image was classified correctly (total,), from `hits`."""
        bits = np.frombuffer(base64.b64decode(self.hits), np.uint8)
        assert len(bits) == math.ceil(self.total / 8)
        return np.unpackbits(bits, count=self.total).astype(bool)

    @property
    def each(self) -> NDArray[np.float64]:
        """The score of each image alone (total,), in [0, 1]: 1 and 0 where it is classified."""
        if not self.scores:
            return self.right.astype(np.float64)
        found = np.frombuffer(base64.b64decode(self.scores), "<f2").astype(np.float64)
        assert len(found) == self.total
        return found

    @property
    def share(self) -> float:
        """The score of the learning problem in [0, 1], such as top-1 accuracy or mean IoU."""
        return self.correct / self.total


@dataclass(slots=True)
class _Cache:
    """Resized images while there is room for them."""

    left_bytes: float
    batches: dict[tuple[Dataset, bool, Size, int], list[Batch]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class EvaluationCounts(TypedDict):
    """Numbers of images for accuracies and for BatchNorm statistics, in batches of `batch_size`, on one device of torch."""

    images: int
    recalibration_images: int
    batch_size: int
    device: str


class OtherPrecision(Protocol):
    """Evaluates SubNets in another precision than torch's."""

    @property
    def key(self) -> Mapping[str, bool | str]:
        """The facts besides the images that its accuracies depend on."""
        ...

    def accuracy(self, net: Any, config: Config, statistics: Statistics, data: "EvaluationData") -> Accuracy:
        """Accuracy of one SubNet with its BatchNorm statistics. Threads call it side by side."""
        ...


class FinishedSubNets(NamedTuple):
    """Accuracies of SubNets by digest, and a few words on the work so far."""

    accuracies: Mapping[str, Accuracy]
    note: str = ""


class EvaluationWorkers(Protocol):
    """Evaluates SubNets in other processes, which load SuperNet and images themselves."""

    def evaluated(
        self, net: Any, configs: Mapping[str, Config], data: "EvaluationData"
    ) -> Generator[FinishedSubNets, None, None]:
        """SubNets of `configs` (by digest) as they are finished, in any order; of a SuperNet that was loaded from a folder.

        Something comes at least each `UPDATE_SECONDS`. Threads call it side by side. What is not finished when the generator is
        closed is given up.
        """
        ...


class EvaluationData:
    """Images to evaluate on, and training images for BatchNorm recalibration, resized once per input size.

    At most `limit` images are evaluated on. Resized tensors are kept up to `cache_mib`; what does not fit is
    read or resized anew each time. BatchNorm statistics are kept, too: `known`.
    dtype: of the images.
    features_mib: what may be kept of the features that SubNets share while they are evaluated together.
    precision: in which `accuracies` evaluates SubNets; None: torch does.
    workers: the processes in which `accuracies` evaluates SubNets of a SuperNet with a folder; None: in this one.
    """

    def __init__(
        self,
        dataset: Dataset,
        train: Dataset,
        *,
        recalibration_images: int = 512,
        batch_size: int = 128,
        limit: int | None = None,
        cache_mib: float = 1024,
        features_mib: float = 1024,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        workers: EvaluationWorkers | None = None,
    ) -> None:
        self.workers = workers
        self.device = device or torch.device("cpu")
        self._dtype = dtype
        self.precision: OtherPrecision | None = None
        self.features_mib = features_mib
        self.known = KnownStatistics()
        self._dataset, self._train = dataset, train
        self._batch_size = min(batch_size, recalibration_images, len(train))
        self._limit, self._recalibration_images = limit, recalibration_images
        self._cache = _Cache(cache_mib * MIB)

    @property
    def dataset(self) -> Dataset:
        """The images of the evaluation."""
        return self._dataset

    @property
    def problem(self) -> LearningProblem:
        """The learning problem by which answers are judged."""
        return self._dataset.problem

    @property
    def counts(self) -> EvaluationCounts:
        """The numbers of images and their batches."""
        return {
            "images": self._count(False),
            "recalibration_images": self._count(True),
            "batch_size": self._batch_size,
            "device": self.device.type,
        }

    @property
    def recipe(self) -> EvaluationRecipe:
        """The settings by which another process loads these images; of splits as `load_splits` makes them."""
        split = self._dataset.split
        assert split is not None
        assert (self._train.split, self._train.settings) == ("train", self._dataset.settings)
        assert self._dtype == torch.float32
        return EvaluationRecipe(
            data=self._dataset.settings,
            split=split,
            fingerprint=(self._dataset.fingerprint, self._train.fingerprint),
            limit=self._limit,
            recalibration_images=self._recalibration_images,
            batch_size=self._batch_size,
            features_mib=self.features_mib,
            device=self.device.type,
        )

    def of(self, dataset: Dataset, *, limited: bool = True) -> "EvaluationData":
        """Other images to evaluate on, with the same training images and statistics. limited: as many images as here."""
        other = copy.copy(self)
        other._dataset = dataset
        other._limit = self._limit if limited else None
        return other

    def in_precision(self, precision: OtherPrecision | None) -> "EvaluationData":
        """The same images and statistics, for accuracies in another precision; None: in torch's."""
        other = copy.copy(self)
        other.precision = precision
        return other

    def batches(self, size: Size) -> Iterable[Batch]:
        """Samples to evaluate on in a size, with their targets."""
        return self._resized(False, size)

    def calibration(self, size: Size) -> Iterable[Any]:
        """Training samples in a size, x of their batches: shuffled once and for all, not augmented."""
        return (x_BCHW for x_BCHW, _ in self._resized(True, size))

    def _resized(self, calibration: bool, size: Size) -> Iterable[Batch]:
        with self._cache.lock:
            return self._cached(calibration, size)

    def _cached(self, calibration: bool, size: Size) -> Iterable[Batch]:
        dataset = self._train if calibration else self._dataset
        count = self._count(calibration)
        key = (dataset, calibration, size, count)
        if key not in self._cache.batches:
            needed_bytes = count * dataset.form.numbers(size) * self._dtype.itemsize
            if needed_bytes > self._cache.left_bytes:
                return self._read(calibration, size)
            self._cache.left_bytes -= needed_bytes
            self._cache.batches[key] = list(self._read(calibration, size))
        return self._cache.batches[key]

    def _count(self, calibration: bool) -> int:
        if calibration:
            return min(len(self._train), self._recalibration_images)
        return min(len(self._dataset), self._limit or len(self._dataset))

    def _read(self, calibration: bool, size: Size) -> Iterable[Batch]:
        base = self._dataset.form.size
        if size != base:
            yield from ((resize(x, size), y) for x, y in self._resized(calibration, base))
            return
        left = self._count(calibration)
        if calibration:
            source = self._train.batches(self._batch_size, seed=CALIBRATION_SEED, augment=False)
        else:
            source = self._dataset.batches(self._batch_size)
        for x_BCHW, target in source:
            yield placed(rows(x_BCHW, 0, left), self.device, self._dtype), target[:left].to(self.device)
            left -= len(target)
            if left <= 0:
                return


@torch.no_grad()
def tallied(
    forward: Callable[..., torch.Tensor],
    batches: Iterable[Batch],
    problem: LearningProblem = CLASSIFICATION,
) -> Tallied:
    """How good the answers of `forward` are (x_BCHW, or each of several inputs -> raw outputs, such as logits_BK)."""
    tally = problem.tally()
    for x_BCHW, target in batches:
        tally.add(answers(forward, x_BCHW), target)
    return tally.found()


def count_correct(
    forward: Callable[..., torch.Tensor],
    batches: Iterable[Batch],
    problem: LearningProblem = CLASSIFICATION,
) -> Accuracy:
    """Accuracy and loss of `forward`, as `tallied`."""
    return Accuracy.tallied(tallied(forward, batches, problem))


def statistics_of(net: Any, config: Config, data: EvaluationData) -> Statistics:
    """BatchNorm statistics of one SubNet, from the training images, unless they are known; for evaluation and export."""
    digest = net.space.digest(config)
    statistics = data.known.get(net.elastic, digest)
    if statistics is None:
        statistics = net.recalibrate(config, data.calibration(net.input_size(config)))
        data.known.put(net.elastic, digest, statistics)
    return statistics


def accuracy(net: Any, config: Config, data: EvaluationData) -> Accuracy:
    """Accuracy of one SubNet with recalibrated BatchNorm; the stored statistics stay as they are."""
    net.elastic.activate(config, statistics_of(net, config, data))
    net.elastic.eval()
    return count_correct(net.elastic, data.batches(net.input_size(config)), data.problem)


def accuracy_lines(
    store: SubNetStore, supernet: Path, split: str, data: EvaluationData, own: Path, progress: Progress
) -> SubNetLines:
    """Accuracies of SubNets of the SuperNet in a folder on a split: a stage's own lines, and those in the store."""
    other = {} if data.precision is None else data.precision.key
    judged = {} if (metric := other_metric(data.problem)) is None else {"metric": metric}
    key = {"measured": "accuracy", "supernet": digest_of(supernet), "split": split, **data.counts, **other, **judged}
    return SubNetLines(own, "digest", store.open(key, progress))


def known_accuracies(file: Path) -> dict[str, Accuracy]:
    """The accuracies that `accuracies` has written, by the SubNet's digest."""
    return {line["digest"]: Accuracy.of(line) for line in read_lines(file)}


def accuracies(
    net: Any,
    configs: Sequence[Config],
    data: EvaluationData,
    file: Path | SubNetLines,
    progress: Progress,
    name: str = "accuracy",
    known: dict[str, Accuracy] | None = None,
) -> list[Accuracy]:
    """Accuracy of each SubNet, in order, as `accuracy` gives it, or in the precision of `data`.

    Each is written to `file`; a second call goes on.
    known: what the file has, by digest, where the caller keeps that; new ones are added.

    SubNets that have their first steps in common are evaluated together (`tailor_ir.subnets.prefixes`), a group at a time
    and all of it on each batch. On a CPU groups are evaluated side by side, one thread each: small networks gain nothing from
    several threads. With `data.workers` other processes evaluate the groups.
    """
    lines = file if isinstance(file, SubNetLines) else SubNetLines(file, "digest")
    digests = [net.space.digest(config) for config in configs]
    known = {line["digest"]: Accuracy.of(line) for line in lines.read(digests)} if known is None else known
    missing = {digest: config for digest, config in zip(digests, configs, strict=True) if digest not in known}
    evaluated = _evaluated_here if data.workers is None or net.folder is None else data.workers.evaluated
    with (
        progress.bar(name, len(set(digests)), len(set(digests)) - len(missing)) as bar,
        closing(evaluated(net, missing, data)) as finished,
    ):
        for found, note in finished:
            for digest, one in found.items():
                known[digest] = one
                lines.append(one.line(digest, missing[digest]))
                bar.advance()
            bar.advance(0)  # ends the work where the run was interrupted
            bar.note(note)
    return [known[digest] for digest in digests]


def _evaluated_here(
    net: Any, configs: Mapping[str, Config], data: EvaluationData
) -> Generator[FinishedSubNets, None, None]:
    """As `EvaluationWorkers.evaluated`, in threads of this process."""
    with _pool(data.device, len(configs)) as (pool, threads):
        work = _Work(net, data, data.features_mib / threads)
        pieces = pieces_of(net, configs, data, threads)
        waiting = {pool.submit(work.evaluate, [configs[digest] for digest in piece]): piece for piece in pieces}
        try:
            while waiting:
                for future in wait(waiting, UPDATE_SECONDS, FIRST_COMPLETED).done:
                    found = dict(zip(waiting.pop(future), future.result(), strict=True))
                    yield FinishedSubNets(found, f"{work.batches} batches")
                yield FinishedSubNets({}, f"{work.batches} batches")
        except BaseException:
            work.stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def evaluate_together(
    net: Any, configs: Sequence[Config], data: EvaluationData, each_batch: Callable[[], None] | None = None
) -> list[Accuracy]:
    """Accuracy of each SubNet of one resolution, in order, as `accuracies` gives it; here and now, in this thread.

    each_batch: called before each batch of images.
    """
    return _Work(net, data, data.features_mib, each_batch=each_batch).evaluate(configs)


def pieces_of(net: Any, configs: Mapping[str, Config], data: EvaluationData, workers: int) -> list[list[str]]:
    """Digests of SubNets to evaluate together, for so many workers, those with most work first; in another precision alone."""
    digests = list(configs)
    if data.precision is not None:
        return [[digest] for digest in digests]
    most = min(MOST_TOGETHER, math.ceil(len(digests) / workers))
    pieces = [[digests[position] for position in group] for group in groups(net.elastic, list(configs.values()), most)]
    return sorted(pieces, key=lambda piece: -len(piece) * math.prod(net.input_size(configs[piece[0]])))


@dataclass(slots=True)
class _Work:
    """Evaluates groups of SubNets on one SuperNet, several at a time."""

    net: Any
    data: EvaluationData
    kept_mib: float
    batches: int = 0
    each_batch: Callable[[], None] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def evaluate(self, configs: Sequence[Config]) -> list[Accuracy]:
        """Accuracy of each SubNet of a group."""
        size = self.net.input_size(configs[0])
        if (other := self.data.precision) is not None:
            pairs = zip(configs, self._statistics(configs, size), strict=True)
            return [other.accuracy(self.net, config, statistics, self.data) for config, statistics in pairs]
        together = self._together(configs)
        together.activate(self._statistics(configs, size))
        tallies = [self.data.problem.tally() for _ in configs]
        for x_BCHW, target in self._counted(self.data.batches(size)):
            for position, outputs in together(x_BCHW):
                tallies[position].add(outputs, target)
        return [Accuracy.tallied(tally.found()) for tally in tallies]

    def _statistics(self, configs: Sequence[Config], size: Size) -> list[Statistics]:
        elastic, known = self.net.elastic, self.data.known
        digests = [self.net.space.digest(config) for config in configs]
        found = {digest: known.get(elastic, digest) for digest in digests}
        missing = [position for position, digest in enumerate(digests) if found[digest] is None]
        if missing:
            together = self._together([configs[position] for position in missing])
            taken = together.observe(self._counted(self.data.calibration(size)))
            for position, statistics in zip(missing, taken, strict=True):
                found[digests[position]] = statistics
                known.put(elastic, digests[position], statistics)
        return [found[digest] or {} for digest in digests]

    def _together(self, configs: Sequence[Config]) -> Prefixes:
        with self._lock:  # the network makes what is needed for a SubNet when it is first asked for it
            return Prefixes(self.net.elastic, configs, self.kept_mib)

    def _counted(self, batches: Iterable[Item]) -> Iterator[Item]:
        for batch in batches:
            if self.stop.is_set():
                raise InterruptedError
            if self.each_batch is not None:
                self.each_batch()
            yield batch
            with self._lock:
                self.batches += 1


@contextmanager
def _pool(device: torch.device, count: int) -> Iterator[tuple[ThreadPoolExecutor, int]]:
    """Worker threads for so many SubNets, and how many; torch's own threads are divided among them."""
    workers = 1 if device.type != "cpu" else max(1, min(len(os.sched_getaffinity(0)), count))
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // workers))
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield pool, workers
    finally:
        torch.set_num_threads(threads)


def recalibrate_module(module: nn.Module, batches: Iterable[Inputs]) -> None:
    """Set BatchNorm statistics of an ordinary network to the mean over `batches`; leaves it in eval mode."""
    torch.optim.swa_utils.update_bn(((x,) for x in batches), _OfBatch(module))  # it takes the first of a tuple
    module.eval()


class _OfBatch(nn.Module):
    """A network that takes all inputs of a batch together."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Inputs) -> torch.Tensor:
        """Its answers."""
        return answers(self.network, x)
