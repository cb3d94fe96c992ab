"""SubNets in int8, with ranges of their own for every layer, and their accuracies, computed by onnxruntime.

The most sensitive layers stay in fp32: as few as the bound on accuracy permits. Predictions from int8 accuracies work
as in fp32: the sensitivities of int8 are measured in int8, on the largest SubNet with one variable changed at a time
(`tasks.prediction.accuracy.sensitivities`).
"""

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from torch.nn import functional

from tailor_ir import Config, Statistics, SuperNet
from tasks.base.progress import Progress
from tasks.data.batches import Inputs, concatenated, pieces, rows, samples_in, tensors
from tasks.data.samples import Size
from tasks.data.teacher import OnnxNetwork
from tasks.evaluation.conversion import onnx_of
from tasks.evaluation.quantise.qdq import Quantiser, layers
from tasks.evaluation.settings import Settings
from tasks.evaluation.subnets import Accuracy, EvaluationData, count_correct

BATCH = 32
"""Batch size of the models for calibration and evaluation."""
SENSITIVITY_IMAGES = 128
"""Training images on which the sensitivity of each layer is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedSubNet:
    """A file in int8. `layers`: all layers with weights; `kept`: the layers in fp32. `images`: number of calibration images.
    Accuracies and losses by split, computed by onnxruntime.
    """

    content: bytes
    layers: tuple[str, ...]
    kept: tuple[str, ...]
    accuracy: dict[str, float]
    lost_points: dict[str, float]
    images: int


def quantise(
    net: SuperNet,
    config: Config,
    statistics: Statistics,
    model: bytes,
    settings: Settings,
    data: Mapping[str, EvaluationData],
    progress: Progress,
) -> QuantisedSubNet:
    """The SubNet's fp32 ONNX model in int8; its ranges come from the training images of its BatchNorm statistics.
    On the first split of `data` it loses at most `max_loss_points`. The losses on all splits are reported.
    """
    with tempfile.TemporaryDirectory(prefix="autotailor-int8-") as folder:
        known = next(iter(data.values()))
        subnet = CalibratedSubNet.of(net, config, statistics, settings, known, Path(folder))
        split = next(iter(data))

        def accuracy(model: bytes, split: str) -> float:
            return count_correct(OnnxNetwork(model), data[split].batches(subnet.size), data[split].problem).share

        exact = {split: accuracy(subnet.model, split) for split in data}

        def lost_points(kept: Collection[str]) -> float:
            return 100 * (exact[split] - accuracy(subnet.quantised(kept), split))

        kept: tuple[str, ...] = ()
        if lost_points(kept) > settings.max_loss_points:
            order = subnet.most_sensitive(progress)
            kept = order[: _fewest(len(order), lambda count: lost_points(order[:count]) <= settings.max_loss_points)]
        found = {split: accuracy(subnet.quantised(kept), split) for split in data}
        return QuantisedSubNet(
            content=subnet.quantiser.quantise(model, kept),
            layers=subnet.layers,
            kept=tuple(name for name in subnet.layers if name in kept),
            accuracy=found,
            lost_points={name: 100 * (exact[name] - found[name]) for name in found},
            images=subnet.images,
        )


@dataclass(frozen=True, slots=True)
class CalibratedSubNet:
    """A SubNet's fp32 model for `BATCH` images, and its quantiser. `images`: calibration images; `size`: their size."""

    model: bytes
    layers: tuple[str, ...]
    quantiser: Quantiser
    images: int
    data: EvaluationData
    size: Size

    @classmethod
    def of(
        cls,
        net: SuperNet,
        config: Config,
        statistics: Statistics,
        settings: Settings,
        data: EvaluationData,
        folder: Path,
    ) -> "CalibratedSubNet":
        """Calibrate by running the SubNet on the training images of `data`; files stay in `folder`."""
        size = net.input_size(config)
        model = onnx_of(net, config, statistics, BATCH)
        graph = onnx.load_from_string(model).graph
        taken = [value.name for value in graph.input]
        feeds = (dict(zip(taken, batch, strict=True)) for batch in _batches(data.calibration(size)))
        quantiser = Quantiser.calibrated(model, feeds, folder, reduce_range=settings.reduce_range)
        names = layers(graph)
        return cls(model, names, quantiser, data.counts["recalibration_images"], data, size)

    def quantised(self, kept: Collection[str]) -> bytes:
        """The model in int8, except for the layers `kept`."""
        return self.quantiser.quantise(self.model, kept)

    def most_sensitive(self, progress: Progress) -> tuple[str, ...]:
        """The layers by the change of class probabilities from fp32 when one alone is in int8; the largest change first."""
        x = tensors(rows(concatenated(list(self.data.calibration(self.size))), 0, SENSITIVITY_IMAGES))
        exact_BK = OnnxNetwork(self.model)(*x).log_softmax(1)
        divergence: dict[str, float] = {}
        with progress.bar("sensitivity of layers to int8", len(self.layers)) as bar:
            for name in self.layers:
                alone = self.quantised([other for other in self.layers if other != name])
                found_BK = OnnxNetwork(alone)(*x).log_softmax(1)
                divergence[name] = float(functional.kl_div(found_BK, exact_BK, reduction="batchmean", log_target=True))
                bar.advance()
        return tuple(sorted(self.layers, key=lambda name: -divergence[name]))


def _batches(images: Iterable[Inputs]) -> Iterator[list[NDArray[Any]]]:
    """All inputs of all images in batches of `BATCH`; the last batch is filled up with its own samples."""
    for piece in pieces(concatenated(list(images)), BATCH):
        filled = np.arange(BATCH) % samples_in(piece)
        yield [one.cpu().numpy()[filled] for one in tensors(piece)]


def _fewest(most: int, enough: Callable[[int], bool]) -> int:
    """The smallest count in 1 … most that is enough, assuming that larger ones are, too; `most` if none is."""
    too_few, count = 0, 1
    while count < most and not enough(count):
        too_few, count = count, min(2 * count, most)
    while count - too_few > 1:
        middle = (too_few + count) // 2
        if enough(middle):
            count = middle
        else:
            too_few = middle
    return count


@dataclass(frozen=True, slots=True)
class Int8:
    """The precision in which `tasks.evaluation.subnets.accuracies` evaluates SubNets that are quantised whole."""

    settings: Settings

    @property
    def key(self) -> Mapping[str, bool | str]:
        """Key with `reduce_range` alone: every layer is in int8, whatever it loses."""
        return {"precision": "int8", "reduce_range": self.settings.reduce_range}

    def accuracy(self, net: SuperNet, config: Config, statistics: Statistics, data: EvaluationData) -> Accuracy:
        """Accuracy of one SubNet with its BatchNorm statistics."""
        with tempfile.TemporaryDirectory(prefix="autotailor-int8-") as folder:
            subnet = CalibratedSubNet.of(net, config, statistics, self.settings, data, Path(folder))
            batches = ((x_BCHW, y_B.cpu()) for x_BCHW, y_B in data.batches(subnet.size))
            network = data.unrolled(net, OnnxNetwork(subnet.quantised(())))
            return count_correct(network, batches, data.problem)
