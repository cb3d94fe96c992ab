"""Images for evaluating SubNets, the device on which torch computes, and interfaces for other precisions and processes.

Another process loads the same images by the settings of a recipe. Stored BatchNorm statistics of SubNets are valid as
long as recomputation would give the same.

Legend: B batch, C channels, H height, W width.
"""

import copy
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch

from profiling_agents.messages import MIB
from tailor_ir import Config, Elastic, Statistics
from tasks.base.errors import UserError
from tasks.base.schemas.stored import Record
from tasks.data import Batch, Dataset, DataSettings, Split
from tasks.data.batches import each, rows, samples_in
from tasks.data.images import resize
from tasks.data.problems import LearningProblem
from tasks.data.samples import Size, placed
from tasks.evaluation.subnets.record import Accuracy
from tasks.evaluation.unrolling import unrolled


class EvaluationRecipe(Record):
    """Content of `tasks.evaluation.subnets.EvaluationData`, without tensors.

    fingerprint: of the split and of the training split, by which a process notices that it has loaded other images. limit: most
    images to evaluate on; None: the whole split. device: kind of torch's device. files: a digest of the listing of the data's
    folder; if it differs, data are loaded anew. The other fields are as in `EvaluationData` and `EvaluationResources`.
    """

    data: DataSettings
    split: Split
    fingerprint: tuple[str, str]
    limit: int | None
    recalibration_images: int
    batch_size: int
    features_mib: float
    device: str
    files: str = ""


class KnownStatistics:
    """Statistics by the SubNet's digest; the least recently used make room. For one set of calibration images.

    Statistics of another network, or from before its weights changed, are dropped.
    """

    def __init__(self, limit_mib: float = 64) -> None:
        self._left_bytes = limit_mib * MIB
        self._found: OrderedDict[str, Statistics] = OrderedDict()
        self._network: weakref.ref[Elastic] | None = None
        self._version: Hashable = None
        self._lock = threading.Lock()

    def get(self, elastic: Elastic, digest: str) -> Statistics | None:
        """The stored statistics of this SubNet; None if there are none."""
        with self._lock:
            self._forget_others(elastic)
            found = self._found.get(digest)
            if found is None:
                return None
            self._found.move_to_end(digest)
            return dict(found)

    def put(self, elastic: Elastic, digest: str, statistics: Statistics) -> None:
        """Store the statistics of this SubNet, if there is room for them."""
        with self._lock:
            self._forget_others(elastic)
            if self._version is None:
                return
            self._found[digest] = dict(statistics)
            self._left_bytes -= _bytes(statistics)
            while self._left_bytes < 0:
                self._drop()

    def _forget_others(self, elastic: Elastic) -> None:
        version = elastic.version
        if self._network is None or self._network() is not elastic or self._version != version:
            while self._found:
                self._drop()
            self._network, self._version = weakref.ref(elastic), version

    def _drop(self) -> None:
        _, oldest = self._found.popitem(last=False)
        self._left_bytes += _bytes(oldest)


def _bytes(statistics: Statistics) -> int:
    return sum(tensor.nbytes for tensor in statistics.values())


def pick_device(wanted: str, local_rank: int = 0) -> torch.device:
    """The device of a rank; `auto` picks a GPU if one exists. Raises UserError when there are fewer GPUs than ranks."""
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise UserError("processes", f"{local_rank + 1} on cuda", allowed=f"at most {count}, the GPUs of this machine")
    return torch.device("cuda", local_rank)


CALIBRATION_SEED = 0
UPDATE_SECONDS = 1.0


@dataclass(slots=True)
class _Cache:
    """Resized images, as long as there is room for them."""

    left_bytes: float
    batches: dict[tuple[Dataset, bool, Size, int], list[Batch]] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


class OtherPrecision(Protocol):
    """Evaluates SubNets in another precision than torch's."""

    @property
    def key(self) -> Mapping[str, bool | str]:
        """Facts besides the images on which its accuracies depend."""
        ...

    def accuracy(self, net: Any, config: Config, statistics: Statistics, data: "EvaluationData") -> Accuracy:
        """Accuracy of one SubNet with its BatchNorm statistics. Threads call it concurrently."""
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
        """SubNets of `configs` (by digest) as they are finished, in any order; the SuperNet was loaded from a folder.

        A result comes at least every `UPDATE_SECONDS`. Threads call it concurrently. Closing the generator abandons unfinished
        SubNets.
        """
        ...


CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResources:
    """Place and memory of an evaluation. device: of torch, with images and SubNets. dtype: of the images.

    cache_mib: limit for resized images [MiB]; others are read or resized anew each time. features_mib: limit for features that
    SubNets share while they are evaluated together [MiB]. workers: processes in which `accuracies` evaluates SubNets of a
    SuperNet with a folder; None: this process.
    """

    device: torch.device = CPU
    dtype: torch.dtype = torch.float32
    cache_mib: float = 1024
    features_mib: float = 1024
    workers: EvaluationWorkers | None = None


HERE = EvaluationResources()


class EvaluationData:
    """Images to evaluate on, and training images for BatchNorm recalibration, resized once per input size.

    dataset: the images to evaluate on, at most `limit` of them. BatchNorm statistics are kept, too, in `known`. precision: in
    which `accuracies` evaluates SubNets; None: torch's.
    """

    def __init__(
        self,
        dataset: Dataset,
        train: Dataset,
        *,
        recalibration_images: int = 512,
        batch_size: int = 128,
        limit: int | None = None,
        resources: EvaluationResources = HERE,
    ) -> None:
        self.workers = resources.workers
        self.device = resources.device
        self._dtype = resources.dtype
        self.precision: OtherPrecision | None = None
        self.features_mib = resources.features_mib
        self.known = KnownStatistics()
        self.dataset, self._train = dataset, train
        run = dataset.source.run_length
        self._batch_size = max(run, min(batch_size, recalibration_images, len(train)) // run * run)
        self._limit, self._recalibration_images = limit, recalibration_images
        self._cache = _Cache(resources.cache_mib * MIB)

    @property
    def problem(self) -> LearningProblem:
        """The learning problem by which answers are judged."""
        return self.dataset.problem

    @property
    def has_confusions(self) -> bool:
        """Whether accuracies have a confusion matrix: only on the test split, on which few networks are evaluated."""
        return self.dataset.split == "test"

    @property
    def counts(self) -> dict[str, Any]:
        """Numbers of images for accuracies and for BatchNorm statistics, in batches of `batch_size`, and torch's device."""
        return {
            "images": self._count(False),
            "recalibration_images": self._count(True),
            "batch_size": self._batch_size,
            "device": self.device.type,
            **({"run_length": run} if (run := self.dataset.source.run_length) > 1 else {}),
        }

    @property
    def recipe(self) -> EvaluationRecipe:
        """Settings with which another process loads these images; only for splits from `load_splits`."""
        split = self.dataset.split
        assert split is not None
        assert (self._train.split, self._train.settings) == ("train", self.dataset.settings)
        assert self._dtype == torch.float32
        return EvaluationRecipe(
            data=self.dataset.settings,
            split=split,
            fingerprint=(self.dataset.fingerprint, self._train.fingerprint),
            limit=self._limit,
            recalibration_images=self._recalibration_images,
            batch_size=self._batch_size,
            features_mib=self.features_mib,
            device=self.device.type,
        )

    def of(self, dataset: Dataset, *, limited: bool = True) -> "EvaluationData":
        """Other images to evaluate on, with the same training images and statistics. limited: with the same limit."""
        other = copy.copy(self)
        other.dataset = dataset
        other._limit = self._limit if limited else None
        return other

    def in_precision(self, precision: OtherPrecision | None) -> "EvaluationData":
        """The same images and statistics, for accuracies in another precision; None: in torch's."""
        other = copy.copy(self)
        other.precision = precision
        return other

    def unrolled(self, net: Any, network: Callable[..., Any]) -> Callable[..., Any]:
        """A form of a SubNet that keeps its own states over the runs of samples; itself if there are none."""
        return unrolled(net.structure.graph, self.dataset, network, self.dataset.source.run_length)

    def batches(self, size: Size) -> Iterable[Batch]:
        """Samples to evaluate on in a size, with their targets."""
        return self._resized(False, size)

    def calibration(self, size: Size) -> Iterable[Any]:
        """Training samples in a size (x of their batches), shuffled in a fixed order, not augmented."""
        return (x_BCHW for x_BCHW, _ in self._resized(True, size))

    def _resized(self, calibration: bool, size: Size) -> Iterable[Batch]:
        dataset, count = self._train if calibration else self.dataset, self._count(calibration)
        key, cache = (dataset, calibration, size, count), self._cache
        with cache.lock:
            if key not in cache.batches:
                needed_bytes = count * dataset.form.numbers(size) * self._dtype.itemsize
                if needed_bytes > cache.left_bytes:
                    return self._read(calibration, size)
                cache.left_bytes -= needed_bytes
                cache.batches[key] = list(self._read(calibration, size))
            return cache.batches[key]

    def _count(self, calibration: bool) -> int:
        if calibration:
            return min(len(self._train), self._recalibration_images)
        return min(len(self.dataset), self._limit or len(self.dataset))

    def _read(self, calibration: bool, size: Size) -> Iterable[Batch]:
        base = self.dataset.form.size
        if size != base:
            yield from ((resize(x, size), y) for x, y in self._resized(calibration, base))
            return
        left = self._count(calibration)
        if calibration:
            source = self._train.batches(self._batch_size, seed=CALIBRATION_SEED, augment=False)
        else:
            source = self.dataset.batches(self._batch_size)
        for x_BCHW, target in source:
            kept = each(rows(target, 0, left), lambda one: one.to(self.device))
            yield placed(rows(x_BCHW, 0, left), self.device, self._dtype), kept
            left -= samples_in(target)
            if left <= 0:
                return
