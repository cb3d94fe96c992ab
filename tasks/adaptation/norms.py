"""Normalisation layers of a SubNet that adapts. Legend: B batch, C channels, S the other axes of a layer's input."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tasks.errors import UserError

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


@dataclass(slots=True)
class StatisticsRule:
    """By what all BatchNorm layers of a SubNet normalise.

    by_batch: by the batch mixed with the source's statistics, while these are kept up to date; else by those kept.
    prior_images: the source's statistics weigh as much as so many images; 0: the batch alone.
    newest_share: of each batch in the statistics that are kept, at least. The k-th batch has 1/k, so that the first ones count
    alike. steps: batches so far. keeps: whether batches count for the statistics that are kept.
    image_errors: by each image's own statistics beyond so many standard errors from those above; None: never.
    """

    by_batch: bool = False
    prior_images: float = 0.0
    newest_share: float = 0.1
    steps: int = 0
    keeps: bool = True
    image_errors: float | None = None

    @property
    def share(self) -> float:
        """Of the next batch in the statistics that are kept."""
        return max(self.newest_share, 1 / (self.steps + 1))


class AdaptiveBatchNorm(nn.Module):
    """BatchNorm of x (B, C, *S) under a `StatisticsRule`, with the names of torch's BatchNorm in its state.

    Mixed statistics are N/(N+n) · source + n/(N+n) · batch for n images and a prior of N (Schneider et al., NeurIPS 2020, §2).
    Of what is kept, mean and mean square are averaged over batches, so that batches of one image give the variance of all.
    If an image is like the others, its mean at L positions has a standard error of √(σ²/L), its variance of σ²·√(2/(L − 1)).
    An image's own statistics count beyond k such errors (instance-aware BatchNorm of NOTE, Gong et al., NeurIPS 2022, §3.1), so
    images under different corruptions need not share statistics, and a batch of one image or class is enough.
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
        mean, variance = self.running_mean, self.running_var
        if self.rule.by_batch:
            mean, variance = self._mixed(x)
            if self.rule.keeps:
                self._keep(mean.detach(), variance.detach())
        elif self.rule.image_errors is None:
            return functional.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.epsilon)
        if self.rule.image_errors is not None and x[0, 0].numel() > 1:
            mean, variance = self._of_images(x, mean, variance, self.rule.image_errors)
        shape = (-1, x.shape[1], *(1,) * (x.dim() - 2))
        scale = self.weight * (variance + self.epsilon).rsqrt()
        return x * scale.view(shape) + (self.bias - mean * scale).view(shape)

    def _of_images(
        self, x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, errors: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance (B, C) of each image, pulled to those given (C,) by so many standard errors."""
        positions = x[0, 0].numel()
        own_variance, own_mean = torch.var_mean(x, list(range(2, x.dim())), correction=0)
        slack = errors * (variance / positions).sqrt()
        variance_slack = errors * variance * math.sqrt(2 / (positions - 1))
        own_variance = variance + beyond(own_variance - variance, variance_slack)
        return mean + beyond(own_mean - mean, slack), own_variance.clamp(min=0)

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


def beyond(away: torch.Tensor, slack: torch.Tensor) -> torch.Tensor:
    """What of a difference is beyond a slack, with its sign."""
    return away.sign() * (away.abs() - slack).clamp(min=0)


Norm = AdaptiveBatchNorm | nn.LayerNorm | nn.GroupNorm


def make_adaptive(network: nn.Module, rule: StatisticsRule) -> dict[str, Norm]:
    """Put an `AdaptiveBatchNorm` in the place of every BatchNorm; all normalisation layers with a scale by name, in order.

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
