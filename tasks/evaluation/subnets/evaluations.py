"""Evaluations of networks: answers, accuracy and BatchNorm statistics, of single networks and of many SubNets.

Groups of SubNets with common first steps are evaluated together in threads of this process. Each accuracy is written as
soon as it is known, here and in the store that stages share. A SuperNet's ends are its largest and smallest SubNets.

Legend: B batch, C channels, H height, W width, K classes.
"""

import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from tailor_ir import Config, Statistics, SuperNet
from tailor_ir.subnets.prefixes import Prefixes, groups
from tasks.base.artifacts import SubNetLines, SubNetStore, digest_of, read_lines
from tasks.base.progress import Progress
from tasks.data import Batch, Dataset
from tasks.data.batches import Inputs, answers
from tasks.data.problems import CLASSIFICATION, LearningProblem, Tallied, other_metric
from tasks.data.samples import Size
from tasks.evaluation.subnets.images import UPDATE_SECONDS, EvaluationData, FinishedSubNets
from tasks.evaluation.subnets.record import Accuracy, graded
from tasks.evaluation.unrolling import Unrolled


@torch.no_grad()
def tallied(
    forward: Callable[..., torch.Tensor], batches: Iterable[Batch], problem: LearningProblem = CLASSIFICATION
) -> Tallied:
    """Tally of the answers of `forward` (x_BCHW, or each of several inputs -> raw outputs, such as logits_BK)."""
    tally = problem.tally()
    for x_BCHW, target in batches:
        tally.add(answers(forward, x_BCHW), target)
    return tally.found()


def count_correct(
    forward: Callable[..., torch.Tensor], batches: Iterable[Batch], problem: LearningProblem = CLASSIFICATION
) -> Accuracy:
    """Accuracy and loss of `forward`, as `tallied`."""
    return Accuracy.tallied(tallied(forward, batches, problem))


def evaluated(forward: Callable[..., torch.Tensor], size: Size, data: EvaluationData) -> Accuracy:
    """Accuracy of `forward` on the images of `data` in a size."""
    found = tallied(forward, data.batches(size), data.problem)
    return Accuracy.tallied(found, confusions=data.has_confusions)


def known_statistics(net: Any, config: Config, data: EvaluationData) -> Statistics | None:
    """BatchNorm statistics of a SubNet if they are known without training images; else None."""
    own: Statistics | None = net.own_statistics(config)
    return data.known.get(net.elastic, net.space.digest(config)) if own is None else own


def statistics_of(net: Any, config: Config, data: EvaluationData) -> Statistics:
    """BatchNorm statistics of one SubNet, for evaluation and export: from the training images, unless they are known.

    Those of the largest SubNet, and of its exits, are known: they are stored, and are the network's own until a training
    replaces them.
    """
    digest = net.space.digest(config)
    statistics = known_statistics(net, config, data)
    if statistics is None:
        statistics = net.recalibrate(config, data.calibration(net.input_size(config)))
        data.known.put(net.elastic, digest, statistics)
    return statistics


def accuracy(net: Any, config: Config, data: EvaluationData) -> Accuracy:
    """Accuracy of one SubNet with recalibrated BatchNorm; the stored statistics do not change."""
    net.elastic.activate(config, statistics_of(net, config, data))
    net.elastic.eval()
    return evaluated(data.unrolled(net, net.elastic), net.input_size(config), data)


def set_own_statistics(net: SuperNet, data: EvaluationData, *, largest: bool = True) -> None:
    """Set the stored BatchNorm statistics of the alternatives, and of the largest SubNet if `largest`, from training images."""
    size = net.input_size(net.max_config)
    if largest:
        net.set_statistics(net.recalibrate(net.max_config, data.calibration(size)))
    net.set_statistics(net.recalibrate_alternatives(data.calibration(size)))


def recalibrate_module(module: nn.Module, batches: Iterable[Inputs]) -> None:
    """Set BatchNorm statistics of an ordinary network to the mean over `batches`; leaves it in eval mode."""
    torch.optim.swa_utils.update_bn(((x,) for x in batches), _OfBatch(module))  # update_bn takes the first of a tuple
    module.eval()


class _OfBatch(nn.Module):
    """A network that takes all inputs of a batch together."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Inputs) -> torch.Tensor:
        """The network's answers."""
        return answers(self.network, x)


Item = TypeVar("Item")
MOST_TOGETHER = 32
"""Most SubNets that are evaluated together, and so lost with a killed run; larger groups would share little more."""


def evaluated_here(
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
    """Accuracy of each SubNet of one resolution, in order, as from `accuracies`; runs in this thread.

    each_batch: called before each batch of images.
    """
    return _Work(net, data, data.features_mib, each_batch=each_batch).evaluate(configs)


def pieces_of(net: Any, configs: Mapping[str, Config], data: EvaluationData, workers: int) -> list[list[str]]:
    """Digests of SubNets to evaluate together, for `workers`, those with most work first; one by one in another precision."""
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
        if isinstance(self.data.unrolled(self.net, self.net.elastic), Unrolled):
            pairs = zip(configs, self._statistics(configs, size), strict=True)
            return [self._with_states(config, statistics, size) for config, statistics in pairs]
        together = self._together(configs)
        together.activate(self._statistics(configs, size))
        tallies = [self.data.problem.tally() for _ in configs]
        for x_BCHW, target in self._counted(self.data.batches(size)):
            for position, outputs in together(x_BCHW):
                tallies[position].add(outputs, target)
        return [Accuracy.tallied(tally.found(), confusions=self.data.has_confusions) for tally in tallies]

    def _with_states(self, config: Config, statistics: Statistics, size: Size) -> Accuracy:
        """Accuracy of a SubNet that keeps its own states: it shares no values with others."""
        alone = self._together([config])
        alone.activate([statistics])
        forward = self.data.unrolled(self.net, lambda *x: next(alone(x))[1])
        return Accuracy.tallied(
            tallied(forward, self._counted(self.data.batches(size)), self.data.problem),
            confusions=self.data.has_confusions,
        )

    def _statistics(self, configs: Sequence[Config], size: Size) -> list[Statistics]:
        elastic, known = self.net.elastic, self.data.known
        digests = [self.net.space.digest(config) for config in configs]
        pairs = zip(digests, configs, strict=True)
        found = {digest: known_statistics(self.net, config, self.data) for digest, config in pairs}
        missing = [position for position, digest in enumerate(digests) if found[digest] is None]
        if missing:
            together = self._together([configs[position] for position in missing])
            taken = together.observe(self._counted(self.data.calibration(size)))
            for position, statistics in zip(missing, taken, strict=True):
                found[digests[position]] = statistics
                known.put(elastic, digests[position], statistics)
        return [found[digest] or {} for digest in digests]

    def _together(self, configs: Sequence[Config]) -> Prefixes:
        with self._lock:  # the network makes parts of a SubNet on first request
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
    """Worker threads for `count` SubNets, and their number; torch's own threads are divided among them."""
    workers = 1 if device.type != "cpu" else max(1, min(len(os.sched_getaffinity(0)), count))
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // workers))
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield pool, workers
    finally:
        torch.set_num_threads(threads)


def accuracy_lines(
    store: SubNetStore, supernet: Path, split: str, data: EvaluationData, own: Path, progress: Progress
) -> SubNetLines:
    """Accuracies of a SuperNet's SubNets on a split: a stage's own lines, and those in the store. supernet: its folder."""
    other = {} if data.precision is None else data.precision.key
    judged = {} if (metric := other_metric(data.problem)) is None else {"metric": metric}
    key = {"measured": "accuracy", "supernet": digest_of(supernet), "split": split, **data.counts, **other, **judged}
    key["largest"] = "stored statistics"  # until 0.16 they were computed anew, too
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
    """Accuracy of each SubNet, in order, as from `accuracy`, or in the precision of `data`.

    Each is written to `file`; a second call continues. known: the content of the file by digest, if the caller keeps it; new
    accuracies are added.

    SubNets with common first steps are evaluated together (`tailor_ir.subnets.prefixes`), a group at a time and all of it on
    each batch. On a CPU groups run concurrently, with one thread each: small networks gain nothing from several threads. With
    `data.workers` other processes evaluate the groups.
    """
    lines = file if isinstance(file, SubNetLines) else SubNetLines(file, "digest")
    digests = [net.space.digest(config) for config in configs]
    known = {line["digest"]: Accuracy.of(line) for line in lines.read(digests)} if known is None else known
    missing = {digest: config for digest, config in zip(digests, configs, strict=True) if digest not in known}
    evaluated = evaluated_here if data.workers is None or net.folder is None else data.workers.evaluated
    with (
        progress.bar(name, len(set(digests)), len(set(digests)) - len(missing)) as bar,
        closing(evaluated(net, missing, data)) as finished,
    ):
        for found, note in finished:
            for digest, one in found.items():
                known[digest] = one
                lines.append(one.line(digest, missing[digest]))
                bar.advance()
            bar.advance(0)  # ends the work if the run was interrupted
            bar.note(note)
    return [known[digest] for digest in digests]


class Ends(NamedTuple):
    """Accuracies of the largest and the smallest SubNet on the same samples."""

    largest: Accuracy
    smallest: Accuracy

    @property
    def mean(self) -> float:
        """The mean of their scores."""
        return (self.largest.share + self.smallest.share) / 2


def ends_on(net: SuperNet, data: EvaluationData) -> Ends:
    """The accuracies on `data`."""
    return Ends(accuracy(net, net.max_config, data), accuracy(net, net.min_config, data))


def accuracies_of_ends(
    net: SuperNet, validation: EvaluationData, test: Dataset, validated: Ends | None = None
) -> dict[str, Any]:
    """`largest_validation_accuracy`, `smallest_test_accuracy` and so on, in [0, 1]; `validation_samples`, `test_samples`.

    validated: on the validation images, if known already.
    """
    found = {
        "validation": validated or ends_on(net, validation),
        "test": ends_on(net, validation.of(test, limited=False)),
    }
    shares = {
        f"{name}_{split}_accuracy": getattr(ends, name).share
        for split, ends in found.items()
        for name in ("largest", "smallest")
    }
    samples = {f"{split}_samples": ends.largest.total for split, ends in found.items()}
    tested = found["test"]
    return shares | samples | graded(*(one.each for one in (tested.largest, tested.smallest) if one.scores))
