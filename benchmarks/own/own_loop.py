"""A network with a training loop of its own: the loop trains SubNets by the sandwich rule, and goes on from there.

python -m benchmarks.own.own_loop
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import autotailor
import tailor_ir
from benchmarks.own.shown import show


class Waves(nn.Module):
    """The frequency of a wave, as a module with its own loss and score, as modules of Lightning have them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, (1, 5), (1, 2), (0, 2), bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d((1, 8)), nn.Flatten())
        self.head = nn.Linear(64 * 8, 1)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The relative frequency (B, 1)."""
        found: torch.Tensor = self.head(self.features(x_BCHW))
        return found

    @staticmethod
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Mean squared error."""
        return functional.mse_loss(outputs, targets)

    @staticmethod
    def score(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Whether the frequency is right to a twentieth of the range."""
        return ((outputs - targets).abs() < 0.05).float().flatten()


def samples(count: int) -> TensorDataset:
    """Noisy waves (1, 1, 128) with their relative frequency."""
    generator = torch.Generator().manual_seed(0)
    frequency, phase = torch.rand(2, count, 1, generator=generator)
    time = torch.linspace(0, 1, 128)
    waves = torch.sin(2 * torch.pi * (phase + (2 + 10 * frequency) * time)) + 0.1 * torch.randn(
        count, 128, generator=generator
    )
    return TensorDataset(waves[:, None, None], frequency)


def main() -> None:
    """Train, and tailor."""
    loader = DataLoader(samples(1200), batch_size=64, shuffle=True)
    net = tailor_ir.compile(Waves(), torch.zeros(1, 1, 1, 128), {"*.width_mult": (0.25, 0.5, 0.75, 1)})
    rng, optimiser = np.random.default_rng(0), torch.optim.AdamW(net.elastic.parameters(), 3e-3)
    net.elastic.train()
    for _ in range(12):
        for x, y in loader:
            for config in autotailor.sandwich(net, rng):
                net.elastic.activate(config)
                Waves.loss(net.elastic(x), y).backward()
            optimiser.step()
            optimiser.zero_grad()
    show(autotailor.resume(net, loader, loss=Waves.loss, score=Waves.score, output_dir="outputs/own_loop"))


if __name__ == "__main__":
    main()
