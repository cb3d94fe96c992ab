"""Values as they arrive in a coding, and the accuracy of a SubNet over devices whose values cross in that coding.

Legend: N samples, C channels, H height, W width, B images of a batch.

The accuracy loss by codings, measured at each cut between segments of the largest SubNet.

In each measurement a single value crosses in a coding. A SubNet that sends several values is predicted to lose the sum, like a
SubNet with several modifications. A gain is chance and counts as no loss.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

import tailor_ir
from adaptive_runtime.offload.split import HOME, PlacedSegments, SplitSubNet
from adaptive_runtime.offload.split.segments import HomeSegments
from profiling_agents.messages import ActivationCoding
from profiling_agents.streams import decoded, encoded
from tailor_ir import SuperNet, find_pieces
from tasks.base.progress import Progress
from tasks.base.schemas.placed import CODINGS_FILE
from tasks.base.schemas.stored import StageResult, Stored
from tasks.data import DataSettings
from tasks.data.samples import Size
from tasks.data.source import only
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import Accuracy, EvaluationData, statistics_of
from tasks.prediction.sensitivity import images_of
from tasks.search.settings import PlacementSettings

Array = NDArray[np.float32]


def arrived(value: Array, coding: ActivationCoding) -> Array:
    """A value as it arrives at the other device."""
    sent, content = encoded(value, coding)
    return decoded(sent, value.shape, content)


def arrived_batch(value: torch.Tensor, coding: ActivationCoding) -> torch.Tensor:
    """Values of several images, coded image by image like requests."""
    return torch.from_numpy(np.stack([arrived(one, coding) for one in value.cpu().numpy()])).to(value.device)


def crossings(plans: Sequence[PlacedSegments]) -> frozenset[int]:
    """The segments before which some plan changes devices; the number after the last one if the answer comes from elsewhere."""
    changes = (pairwise((HOME, *plan.devices, HOME)) for plan in plans)
    return frozenset(at for pairs in changes for at, (giver, taker) in enumerate(pairs) if giver != taker)


class CodedSubNet:
    """A SubNet in segments, whose values are coded wherever some plan sends them: no single plan loses more than this."""

    def __init__(self, split: SplitSubNet, plans: Sequence[PlacedSegments], coding: ActivationCoding) -> None:
        self._subnet, self._home, self._coding = split.subnet, HomeSegments(split), coding
        self._crossings, self._end = crossings(plans), len(split.subnet.segments)

    def infer(self, x_NCHW: Array) -> Array:
        """The answer of one request."""
        values, first = {self._subnet.input: x_NCHW}, 0
        for cut in sorted(self._crossings | {self._end}):
            if cut > first:
                values |= self._home.run(values, first, cut - 1).values
                first = cut
            if cut in self._crossings:
                names = (self._subnet.answer,) if cut == self._end else self._subnet.entering(cut, self._end - 1)
                values |= {name: arrived(values[name], self._coding) for name in names}
        return values[self._subnet.answer]

    def accuracy(self, images: EvaluationData, size: Size) -> Accuracy:
        """Accuracy on images of a size, one request per image."""
        tally = images.problem.tally()
        for x_BCHW, target in images.batches(size):
            answers = [self.infer(one[None]) for one in x_BCHW.cpu().numpy()]
            tally.add(torch.from_numpy(np.concatenate(answers)), target)
        return Accuracy.tallied(tally.found())


FP32: ActivationCoding = "fp32"


class CodingLosses(Stored):
    """Losses of the largest SubNet. accuracy: in fp32, on `images` images. losses: coding -> loss at each cut."""

    STAGE: ClassVar[str] = "search"
    KIND: ClassVar[str] = "losses of codings"

    images: int
    accuracy: float
    losses: dict[str, tuple[float, ...]]

    def table(self, codings: tuple[ActivationCoding, ...]) -> NDArray[np.float64]:
        """Losses (cuts, codings)."""
        cuts = max(map(len, self.losses.values()), default=0)
        return np.stack([np.asarray(self.losses.get(coding, (0.0,) * cuts)) for coding in codings], axis=1)


def run(
    settings: PlacementSettings,
    evaluation: EvaluationSettings,
    data: DataSettings,
    supernet: Path,
    out: Path,
    progress: Progress,
) -> StageResult:
    """Write `codings.json`."""
    net = tailor_ir.load(supernet)
    return measured_losses(net, images_of(evaluation, data), settings, progress).write(out / CODINGS_FILE)


def no_losses(cuts: int) -> CodingLosses:
    """Losses if values are only sent in fp32."""
    return CodingLosses(images=0, accuracy=0.0, losses={FP32: (0.0,) * cuts})


@torch.no_grad()
def measured_losses(
    net: SuperNet, images: EvaluationData, settings: PlacementSettings, progress: Progress
) -> CodingLosses:
    """The loss of each coding at each cut of the largest SubNet, on at most `coding_images` images."""
    images.dataset.form.require("codings", "search.placement", "leave it out")
    config, pieces = net.max_config, find_pieces(net.pre_partition())
    dataflow = net.pre_partition().under(net.space.row(config))
    piece_of = pieces.of_operators()
    groups: dict[int, list[int]] = {}
    for at, position in enumerate(dataflow.positions):
        groups.setdefault(piece_of[position], []).append(at)
    net.elastic.to(images.device)
    modules = net.parts(config, list(groups.values()), statistics_of(net, config, images))
    coded = [coding for coding in settings.ascending if coding != FP32]
    exact = images.problem.tally()
    tallies = [[images.problem.tally() for _ in coded] for _ in range(len(modules) + 1)]
    batches = list(_first(images, net.input_size(config), settings.coding_images))
    with progress.bar("accuracy of codings", len(batches) * len(tallies)) as bar:
        for x_BCHW, target in batches:
            values = [x_BCHW]
            for module in modules:
                values.append(module(values[-1]))
            exact.add(values[-1], target)
            for cut, value in enumerate(values):
                for coding, tally in zip(coded, tallies[cut], strict=True):
                    outputs = arrived_batch(value, coding)
                    for module in modules[cut:]:
                        outputs = module(outputs)
                    tally.add(outputs, target)
                bar.advance()
    whole = Accuracy.tallied(exact.found())
    correct = [[whole.correct, *(Accuracy.tallied(each.found()).correct for each in row)] for row in tallies]
    lost = np.maximum(whole.correct - np.array(correct), 0) / whole.total
    before = np.searchsorted(np.asarray(list(groups)), np.arange(len(pieces.crossing)))  # parts before each cut
    losses = {coding: tuple(lost[before, column].tolist()) for column, coding in enumerate([FP32, *coded])}
    return CodingLosses(images=whole.total, accuracy=whole.share, losses=losses)


def _first(images: EvaluationData, size: tuple[int, ...], most: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    left = most
    for x, target in images.batches(size):
        if left <= 0:
            return
        yield only(x)[:left], target[:left]
        left -= len(target)
