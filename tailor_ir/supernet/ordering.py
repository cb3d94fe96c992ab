"""Whether the order of channels by importance helps smaller SubNets, judged by their answers, not by their weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tailor_ir.reading.value_reads import tensors_in
from tailor_ir.spaces.space import Space
from tailor_ir.spaces.variables import Config
from tailor_ir.structure.propagation import AxisMap

SUBNETS = 6
"""Number of smaller SubNets by which an order is judged."""


@dataclass(frozen=True, slots=True)
class ChannelOrder:
    """How close smaller SubNets are to the network, on holdout inputs, with its own order of channels and with the sorted one.

    own, sorted: means over SubNets of the correlation with the network's answers, taken of the differences between inputs: 1
    for equal answers, 0 for answers without information. Equal numbers: no smaller SubNet leaves out sortable channels.
    """

    own: float
    sorted: float

    @property
    def is_sorted(self) -> bool:
        """Whether the sorted order is better, and was therefore kept."""
        return self.sorted > self.own

    @property
    def line(self) -> str:
        """The decision in one line."""
        if self.own == self.sorted:
            return "channels stay in the network's order: sorting changes no smaller SubNet"
        kept = "are sorted by importance" if self.is_sorted else "stay in the network's order"
        return (
            f"channels {kept}: answers of smaller SubNets correlate with the network's by {self.own:.2f} in its own order, by "
            f"{self.sorted:.2f} in the sorted one"
        )


def sortable(space: Space, axis_map: AxisMap) -> list[int]:
    """The channel groups that SubNets cut and that no operator reads in their order."""
    channels = {group for axes in axis_map.axes.values() for axis in axes for group in axis.channel_groups}
    return [one.group for one in space.sizings if one.group in channels and one.group not in axis_map.ordered]


def narrower(space: Space, groups: Sequence[int], rng: np.random.Generator) -> list[Config]:
    """Different SubNets that cut the given channel groups and are otherwise the largest."""
    columns = sorted({column for one in space.sizings if one.group in groups for column in one.variables})
    found: dict[str, Config] = {}
    largest = space.digest(space.max_config)
    for _ in range(4 * SUBNETS):
        codes = space.cardinalities - 1
        for column in columns:
            codes[column] = rng.integers(space.cardinalities[column])
        config = space.decode(codes)
        if len(found) < SUBNETS and space.digest(config) != largest:
            found.setdefault(space.digest(config), config)
    return list(found.values())


def correlation(expected: object, found: object) -> float:
    """The correlation of the differences of two answers between samples, the mean over outputs; 0 if there are none."""
    pairs = zip(tensors_in(expected), tensors_in(found), strict=True)
    return float(np.mean([_correlation(one, other) for one, other in pairs]))


def _correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    a, b = ((x - x.mean(0, keepdim=True)).flatten() for x in (one.double(), other.double()))
    cosine = float(a @ b / (a.norm() * b.norm()).clamp_min(torch.finfo(torch.float64).tiny))
    return cosine if np.isfinite(cosine) else 0.0


def put_together(answers: Sequence[object]) -> list[torch.Tensor]:
    """Answers to several batches, joined as if to one batch."""
    return [torch.cat(each) for each in zip(*(list(tensors_in(answer)) for answer in answers), strict=True)]
