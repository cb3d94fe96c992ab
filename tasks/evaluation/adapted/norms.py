"""Normalisation layers of a SubNet that adapts. Legend: B batch, C channels, S the other axes of a layer's input."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tasks.base.errors import UserError

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(slots=True)
class StatisticsRule:
    """The statistics by which all BatchNorm layers of a SubNet normalise.

    by_batch: normalise by the batch mixed with the source's statistics, and update the running statistics; else normalise by
    the running statistics. prior_images: number of images that the source's statistics weigh as much as; 0: the batch alone.
    newest_share: least share of each batch in the running statistics. The k-th batch has 1/k, so that the first batches count
    alike. steps: batches so far. keeps: whether batches update the running statistics.
    """

    by_batch: bool = False
    prior_images: float = 0.0
    newest_share: float = 0.1
    steps: int = 0
    keeps: bool = True

    @property
    def share(self) -> float:
        """Share of the next batch in the running statistics."""
        return max(self.newest_share, 1 / (self.steps + 1))


class AdaptiveBatchNorm(nn.Module):
    """BatchNorm of x (B, C, *S) under a `StatisticsRule`; its state has the names of torch's BatchNorm.

    Mixed statistics are N/(N+n) · source + n/(N+n) · batch for n images and a prior of N (Schneider et al., NeurIPS 2020, §2).
    The running statistics average mean and mean square over batches, so that batches of one image give the variance over all
    images.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    source_mean: torch.Tensor
    source_var: torch.Tensor

    def __init__(self, layer: BatchNorm, rule: StatisticsRule) -> None:
        super().__init__()
        assert layer.running_mean is not None
        assert layer.running_var is not None
        self.weight, self.bias, self.epsilon, self.rule = layer.weight, layer.bias, layer.eps, rule
        self.register_buffer("running_mean", layer.running_mean)
        self.register_buffer("running_var", layer.running_var)
        self.register_buffer("source_mean", layer.running_mean.clone(), persistent=False)
        self.register_buffer("source_var", layer.running_var.clone(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.rule.by_batch:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.epsilon
            )
        mean, variance = self._mixed(x)
        if self.rule.keeps:
            self._keep(mean.detach(), variance.detach())
        shape = (1, -1, *(1,) * (x.dim() - 2))
        scale = self.weight * (variance + self.epsilon).rsqrt()
        return x * scale.view(shape) + (self.bias - mean * scale).view(shape)

    def _mixed(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance (C,) of the batch, mixed with the source's."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        variance, mean = torch.var_mean(x, axes, correction=0)
        own = len(x) / (len(x) + self.rule.prior_images)
        return torch.lerp(self.source_mean, mean, own), torch.lerp(self.source_var, variance, own)

    def _keep(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        share = self.rule.share
        square = torch.lerp(self.running_var + self.running_mean.square(), variance + mean.square(), share)
        self.running_mean.lerp_(mean, share)
        self.running_var.copy_((square - self.running_mean.square()).clamp(min=0))


Norm = AdaptiveBatchNorm | nn.LayerNorm | nn.GroupNorm


def make_adaptive(network: nn.Module, rule: StatisticsRule) -> dict[str, Norm]:
    """Replace every BatchNorm by an `AdaptiveBatchNorm`; all normalisation layers with a scale by name, in order.
    UserError for a network without any.
    """
    for name, layer in list(network.named_modules()):
        if isinstance(layer, BatchNorm):
            parent, _, own = name.rpartition(".")
            setattr(network.get_submodule(parent), own, AdaptiveBatchNorm(layer, rule))
    norms: dict[str, Norm] = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, AdaptiveBatchNorm)
        or (isinstance(layer, nn.LayerNorm | nn.GroupNorm) and layer.weight is not None)
    }
    if not norms:
        raise UserError(
            "adaptation",
            "the SubNet has no normalisation layer with a scale",
            allowed="networks with BatchNorm, LayerNorm or GroupNorm",
            next_step="answer with the SubNet as it is",
        )
    return norms
