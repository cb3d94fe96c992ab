"""Groups of SubNets with common first steps, evaluated together in threads of this process.

Legend: B batch, C channels, H height, W width.
"""

import math
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tailor_ir import Config, Statistics
from tailor_ir.subnets.prefixes import Prefixes, groups
from tasks.data.samples import Size
from tasks.evaluation.subnets.images import UPDATE_SECONDS, EvaluationData, FinishedSubNets
from tasks.evaluation.subnets.record import Accuracy
from tasks.evaluation.subnets.single import known_statistics

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
        together = self._together(configs)
        together.activate(self._statistics(configs, size))
        tallies = [self.data.problem.tally() for _ in configs]
        for x_BCHW, target in self._counted(self.data.batches(size)):
            for position, outputs in together(x_BCHW):
                tallies[position].add(outputs, target)
        return [Accuracy.tallied(tally.found(), confusions=self.data.tells_confusions) for tally in tallies]

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
