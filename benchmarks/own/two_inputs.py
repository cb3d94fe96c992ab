"""A network with two inputs, from a DataLoader of dictionaries.

python -m benchmarks.own.two_inputs
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import autotailor
from benchmarks.own.shown import fit, show


class Arm(nn.Module):
    """Whether a point in an image is within reach of an arm with these angles."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((1, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.image = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 3 * 5, 32), nn.ReLU())
        self.angles = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, image: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Logits (B, 2)."""
        found: torch.Tensor = self.head(torch.cat([self.image(image), self.angles(angles)], 1))
        return found


class Scenes(Dataset[dict[str, torch.Tensor]]):
    """Spots in images of 24 x 40 pixels, and angles that point to the spot or elsewhere."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.places = torch.rand(count, 2, generator=generator)
        self.reached = torch.arange(count) % 2
        aside = torch.rand(count, 2, generator=generator)
        self.angles = torch.where(self.reached[:, None] > 0, self.places + 0.05 * (aside - 0.5), aside)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        down, right = (self.places[index] * torch.tensor([23.0, 39.0])).tolist()
        rows, columns = torch.arange(24.0)[:, None], torch.arange(40.0)[None]
        image = torch.exp(-((rows - down) ** 2 + (columns - right) ** 2) / 8)[None]
        return {"image": image, "angles": self.angles[index], "reached": self.reached[index]}


def loss(outputs: torch.Tensor, reached: torch.Tensor) -> torch.Tensor:
    """Cross-entropy."""
    return functional.cross_entropy(outputs, reached)


def score(outputs: torch.Tensor, reached: torch.Tensor) -> torch.Tensor:
    """Whether the answer is right (B,)."""
    return (outputs.argmax(1) == reached).float()


def main() -> None:
    """Train, and tailor."""
    loader = DataLoader(Scenes(2400), batch_size=64, shuffle=True)
    model = fit(Arm(), loader, loss, epochs=12, inputs=("image", "angles"))
    data = autotailor.Data(loader, inputs=["image", "angles"], classes=["out of reach", "within reach"])
    show(autotailor.tailor(model, data, loss=loss, score=score, minutes=3, output_dir="outputs/two_inputs"))


if __name__ == "__main__":
    main()
