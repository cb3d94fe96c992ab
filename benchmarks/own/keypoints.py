"""Two keypoints in images of 48 x 96 pixels: own loss, and own share of correct keypoints (PCK).

python -m benchmarks.own.keypoints
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import autotailor
from benchmarks.own.shown import fit, show

SIZE = torch.tensor([48.0, 96.0])
CLOSE_PIXELS = 4


def network() -> nn.Module:
    """Images (B, 1, 48, 96) -> rows and columns of two points, relative to the size (B, 4)."""
    layers: list[nn.Module] = []
    for before, after in ((1, 16), (16, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 3 * 6, 4))


def samples(count: int) -> TensorDataset:
    """A narrow and a wide spot in noise, and their places."""
    generator = torch.Generator().manual_seed(0)
    points = 4 + torch.rand(count, 2, 2, generator=generator) * (SIZE - 8)
    rows, columns = torch.arange(48.0)[:, None], torch.arange(96.0)[None]
    images = 0.1 * torch.randn(count, 48, 96, generator=generator)
    for number, width in enumerate((6.0, 36.0)):
        down, right = points[:, number, :, None, None].unbind(1)
        images += torch.exp(-((rows - down) ** 2 + (columns - right) ** 2) / width)
    return TensorDataset(images[:, None], (points / SIZE).flatten(1))


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Smooth absolute error."""
    return functional.smooth_l1_loss(outputs, targets, beta=0.02)


def pck(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The share of a sample's points that are close (B,)."""
    distances = ((outputs - targets).reshape(-1, 2, 2) * SIZE).norm(dim=2)
    return (distances < CLOSE_PIXELS).float().mean(1)


def main() -> None:
    """Train, and tailor."""
    loader = DataLoader(samples(2400), batch_size=64, shuffle=True)
    model = fit(network(), loader, loss, epochs=12)
    asked: dict[str, Any] = {"devices": ["onnxruntime", "ncnn"], "minutes": 5, "output_dir": "outputs/keypoints"}
    show(autotailor.tailor(model, loader, loss=loss, score=pck, **asked))


if __name__ == "__main__":
    main()
