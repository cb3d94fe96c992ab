"""BatchNorm of SubNets: normalised by a batch, by given statistics, or while statistics are recorded."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Statistics = dict[str, torch.Tensor]
"""A SubNet's own tensors, in its shapes: name of a running mean or variance -> (channels of the SubNet,).

For a SubNet that has adapted, also other tensors (`SuperNet.own_tensors`), and the tensors of its input alignment
(`InputAlignment.tensors`).
"""


@dataclass(slots=True)
class Moments:
    """Mean and variance (C,) of a norm's input: means over the batches so far."""

    mean: torch.Tensor
    variance: torch.Tensor
    batches: int = 0


@dataclass(slots=True)
class Observed:
    """Statistics that are being recorded, by norm, in the order of their calls; None: no recording."""

    moments: "dict[ElasticBatchNorm, Moments] | None" = None


class ElasticBatchNorm(nn.Module):
    """BatchNorm of the active SubNet: batch statistics in training (nothing is written), else the given statistics."""

    def __init__(self, mean_name: str, variance_name: str, epsilon: float, observed: Observed) -> None:
        super().__init__()
        self.mean_name, self.variance_name, self.epsilon = mean_name, variance_name, epsilon
        self.observed = observed

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        moments = self.observed.moments
        if moments is not None:
            if self not in moments:
                moments[self] = self.start(scale)
            return self.observe(x, scale, bias, moments[self])
        if self.training:
            return self.by_batch(x, scale, bias)
        return self.by_statistics(x, scale, bias, mean, variance)

    def by_statistics(
        self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
    ) -> torch.Tensor:
        """x (B, C, …) normalised by given statistics (C,)."""
        return F.batch_norm(x, mean, variance, scale, bias, training=False, eps=self.epsilon)

    def by_batch(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """x (B, C, …) normalised by its own statistics, which are not kept."""
        return F.batch_norm(x, None, None, scale, bias, training=True, eps=self.epsilon)

    def observe(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, moments: Moments) -> torch.Tensor:
        """x (B, C, …) normalised by its own statistics, which are added to the moments as one more batch."""
        moments.batches += 1
        return F.batch_norm(
            x,
            moments.mean,
            moments.variance,
            scale,
            bias,
            training=True,
            momentum=1.0 / moments.batches,
            eps=self.epsilon,
        )

    @staticmethod
    def start(scale: torch.Tensor) -> Moments:
        """Moments before the first batch."""
        return Moments(torch.zeros_like(scale), torch.ones_like(scale))


def statistics_of(observed: Iterable[tuple[ElasticBatchNorm, Moments]]) -> Statistics:
    """Statistics by name; for a norm with several calls, the mean over them."""
    found: dict[str, list[torch.Tensor]] = {}
    for norm, moments in observed:
        found.setdefault(norm.mean_name, []).append(moments.mean)
        found.setdefault(norm.variance_name, []).append(moments.variance)
    return {name: each[0] if len(each) == 1 else torch.stack(each).mean(0) for name, each in found.items()}
