"""An embedding network without labels: SubNets shall give the network's own vectors.

python -m benchmarks.own.embedding
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import autotailor
from benchmarks.own.shown import fit, show
from tasks.data import DataSettings, load_splits


class Embedding(nn.Module):
    """Images (B, 3, 32, 32) -> unit vectors (B, 64)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, stride in ((3, 16, 1), (16, 32, 2), (32, 64, 2), (64, 64, 2)):
            layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
            layers += [nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 64))

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """The vectors."""
        return functional.normalize(self.features(x_BCHW), dim=1)


def trained(images: torch.Tensor, labels: torch.Tensor) -> Embedding:
    """A network whose vectors of one digit lie together: a classifier by cosine, whose last layer goes."""
    network, ways = Embedding(), nn.Linear(64, 10, bias=False)

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(10 * outputs @ functional.normalize(ways.weight, dim=1).T, targets)

    loader = DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=True)
    fit(network, loader, loss, epochs=6, others=ways.parameters())
    return network


def main() -> None:
    """Train with labels, and tailor without."""
    digits = load_splits(DataSettings(kind="noisy_digits", images=3000))["train"]
    images, labels = next(digits.batches(len(digits), seed=0, augment=False))
    model = trained(images, labels)
    show(autotailor.tailor(model, images, minutes=3, output_dir="outputs/embedding"))


if __name__ == "__main__":
    main()
