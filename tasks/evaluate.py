"""Accuracy of SubNets, each with its own BatchNorm statistics, taken from training images, never shared."""

import copy
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tasks.artifacts import append_line, read_lines
from tasks.data import Batch, Dataset
from tasks.data.images import resize
from tasks.progress import Progress

Config = dict[str, Any]
CALIBRATION_SEED = 0


class Accuracy(NamedTuple):
    """Correctly classified images of all, and their mean cross-entropy loss."""

    correct: int
    total: int
    loss: float

    @property
    def share(self) -> float:
        """Top-1 accuracy in [0, 1]."""
        return self.correct / self.total


class EvaluationData:
    """Images to evaluate on, and training images for BatchNorm recalibration, resized once per input size.

    At most `limit` images are evaluated on. Resized tensors are kept up to `cache_mib`; what does not fit is
    read or resized anew each time.
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
        device: torch.device | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self._dataset, self._train = dataset, train
        self._batch_size = min(batch_size, recalibration_images, len(train))
        self._limits = (limit or len(dataset), min(recalibration_images, len(train)))
        self._cache: dict[tuple[bool, tuple[int, int]], list[Batch]] = {}
        self._left_bytes = cache_mib * 2**20
        self._lock = threading.RLock()

    def batches(self, size: tuple[int, int]) -> Iterable[Batch]:
        """Images to evaluate on at (height, width), with their labels."""
        return self._resized(False, size)

    def calibration(self, size: tuple[int, int]) -> Iterable[torch.Tensor]:
        """Training images at (height, width): shuffled once and for all, not augmented."""
        return (x_BCHW for x_BCHW, _ in self._resized(True, size))

    def _resized(self, calibration: bool, size: tuple[int, int]) -> Iterable[Batch]:
        with self._lock:
            return self._cached(calibration, size)

    def _cached(self, calibration: bool, size: tuple[int, int]) -> Iterable[Batch]:
        if (calibration, size) in self._cache:
            return self._cache[calibration, size]
        dataset = self._train if calibration else self._dataset
        count = min(len(dataset), self._limits[calibration])
        needed_bytes = count * dataset.channels * size[0] * size[1] * 4
        if needed_bytes > self._left_bytes:
            return self._read(calibration, size)
        self._left_bytes -= needed_bytes
        self._cache[calibration, size] = list(self._read(calibration, size))
        return self._cache[calibration, size]

    def _read(self, calibration: bool, size: tuple[int, int]) -> Iterable[Batch]:
        base = (self._dataset.settings.resolution,) * 2
        if size != base:
            yield from ((resize(x, size), y) for x, y in self._resized(calibration, base))
            return
        left = self._limits[calibration]
        if calibration:
            source = self._train.batches(self._batch_size, seed=CALIBRATION_SEED, augment=False)
        else:
            source = self._dataset.batches(self._batch_size)
        for x_BCHW, y_B in source:
            yield x_BCHW[:left].to(self.device), y_B[:left].to(self.device)
            left -= len(y_B)
            if left <= 0:
                return


@torch.no_grad()
def count_correct(forward: Callable[[torch.Tensor], torch.Tensor], batches: Iterable[Batch]) -> Accuracy:
    """Top-1 accuracy and loss of `forward` (x_BCHW -> logits_BK)."""
    correct, total, loss = 0, 0, 0.0
    for x_BCHW, y_B in batches:
        logits_BK = forward(x_BCHW)
        correct += int((logits_BK.argmax(1) == y_B).sum())
        loss += float(functional.cross_entropy(logits_BK, y_B, reduction="sum"))
        total += len(y_B)
    return Accuracy(correct, total, loss / total)


def statistics_of(net: Any, config: Config, data: EvaluationData) -> dict[str, torch.Tensor]:
    """BatchNorm statistics of one SubNet, from the training images; for evaluation and export."""
    height, width = net.input_shape(config)[-2:]
    statistics: dict[str, torch.Tensor] = net.recalibrate(config, data.calibration((height, width)))
    return statistics


def accuracy(net: Any, config: Config, data: EvaluationData) -> Accuracy:
    """Top-1 accuracy of one SubNet with recalibrated BatchNorm; the stored statistics stay as they are."""
    statistics = statistics_of(net, config, data)
    height, width = net.input_shape(config)[-2:]
    net.elastic.activate(config, statistics)
    net.elastic.eval()
    return count_correct(net.elastic, data.batches((height, width)))


def accuracies(
    net: Any,
    configs: Sequence[Config],
    data: EvaluationData,
    file: Path,
    progress: Progress,
    name: str = "accuracy",
) -> list[Accuracy]:
    """Accuracy of each SubNet, in order. Each is written to `file` as it comes; a second call goes on.

    On a CPU, SubNets are evaluated side by side on copies of the SuperNet, one thread each: small networks gain
    nothing from several threads.
    """
    known = {line["digest"]: Accuracy(line["correct"], line["total"], line["loss"]) for line in read_lines(file)}
    digests = [net.space.digest(config) for config in configs]
    missing = {digest: config for digest, config in zip(digests, configs, strict=True) if digest not in known}
    with (
        progress.bar(name, len(set(digests)), len(set(digests)) - len(missing)) as bar,
        _evaluators(net, data, len(missing)) as (pool, evaluate),
    ):
        futures = {pool.submit(evaluate, config): digest for digest, config in missing.items()}
        try:
            for future in as_completed(futures):
                digest = futures[future]
                known[digest] = future.result()
                append_line(file, {"digest": digest, "config": missing[digest], **known[digest]._asdict()})
                bar.advance()
                bar.note(f"{known[digest].share:.1%}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [known[digest] for digest in digests]


@contextmanager
def _evaluators(
    net: Any, data: EvaluationData, count: int
) -> Iterator[tuple[ThreadPoolExecutor, Callable[[Config], Accuracy]]]:
    """Worker threads, each with a SuperNet of its own, and what they run."""
    workers = 1 if data.device.type != "cpu" else max(1, min(len(os.sched_getaffinity(0)), count))
    idle: SimpleQueue[Any] = SimpleQueue()
    for copy_number in range(workers):
        idle.put(net if copy_number == 0 else copy.deepcopy(net))

    def evaluate(config: Config) -> Accuracy:
        own = idle.get()
        try:
            return accuracy(own, config, data)
        finally:
            idle.put(own)

    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads // workers))
    try:
        with ThreadPoolExecutor(workers) as pool:
            yield pool, evaluate
    finally:
        torch.set_num_threads(threads)


def recalibrate_module(module: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Set BatchNorm statistics of an ordinary network to the mean over `batches`; leaves it in eval mode."""
    torch.optim.swa_utils.update_bn(batches, module)
    module.eval()
