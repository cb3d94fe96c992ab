"""Values as they arrive in a coding, and the accuracy of a SubNet over devices whose values cross in that coding.

Legend: N samples, C channels, H height, W width, B images of a batch.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.offload.split import HOME, PlacedSegments, SplitSubNet
from adaptive_runtime.offload.split.segments import HomeSegments
from profiling_agents.messages import ActivationCoding
from profiling_agents.streams import decoded, encoded
from tasks.data.samples import Size
from tasks.evaluation.subnets import Accuracy, EvaluationData


def arrived(value: Array, coding: ActivationCoding) -> Array:
    """A value as it arrives at the other device."""
    sent, content = encoded(value, coding)
    return decoded(sent, value.shape, content)


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
