"""Ordinal labels with their own loss: how many of the levels a sample exceeds, and how near the level is.

python -m benchmarks.own.ordinal
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import autotailor
from benchmarks.own.shown import fit, show

LEVELS = 6


def network() -> nn.Module:
    """Images (B, 3, 32, 32) -> a logit for each exceeded level (B, LEVELS - 1)."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, LEVELS - 1))


def samples(count: int) -> TensorDataset:
    """Images with one to LEVELS bright bars, and the number of bars less one."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.arange(count) % LEVELS
    images = 0.3 * torch.randn(count, 3, 32, 32, generator=generator)
    for image, level in zip(images, levels.tolist(), strict=True):
        for place in torch.randperm(15, generator=generator)[: level + 1].tolist():
            image[:, :, 2 * place + 1] += 1.0
    return TensorDataset(images, levels)


def loss(outputs: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy of each level's logit. Source: Niu et al., Ordinal Regression (CVPR 2016) §3.2."""
    exceeded = (levels[:, None] > torch.arange(LEVELS - 1, device=levels.device)).float()
    return functional.binary_cross_entropy_with_logits(outputs, exceeded)


def score(outputs: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """1 less the distance from the level over the largest distance (B,)."""
    return 1 - ((outputs > 0).sum(1) - levels).abs() / (LEVELS - 1)


def main() -> None:
    """Train, and tailor."""
    loader = DataLoader(samples(2400), batch_size=64, shuffle=True)
    model = fit(network(), loader, loss, epochs=10)
    show(autotailor.tailor(model, loader, loss=loss, score=score, minutes=3, output_dir="outputs/ordinal"))


if __name__ == "__main__":
    main()
