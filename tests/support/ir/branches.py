"""A network whose branches wait for each other in the default order."""

import torch
from torch import nn


class Wide(nn.Module):
    """Branches whose wide tensors wait for each other in the default order."""

    def __init__(self, branches: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.wide = nn.ModuleList(nn.Conv2d(16, 64 * (2 + at), 3, padding=1) for at in range(branches))
        self.narrow = nn.ModuleList(nn.Conv2d(64 * (2 + at), 16, 1) for at in range(branches))
        self.head = nn.Linear(16 * branches, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        wide = [torch.relu(layer(x)) for layer in self.wide]
        joined = torch.cat([layer(y) for layer, y in zip(self.narrow, wide, strict=True)], 1)
        return self.head(joined.mean((2, 3)))


class WideBlocks(nn.Module):
    """Residual blocks of wide branches, at two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.first, self.second = WideBlock(16, (96, 128, 64)), WideBlock(16, (64, 192))
        self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(torch.relu(self.stem(x)))
        return self.head(self.second(torch.relu(self.down(x))).mean((2, 3)))


class WideBlock(nn.Module):
    """What enters, and the sum of branches that are wider."""

    def __init__(self, channels: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Conv2d(channels, width, 3, padding=1) for width in widths)
        self.narrow = nn.ModuleList(nn.Conv2d(width, channels, 1) for width in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = [torch.relu(layer(x)) for layer in self.wide]
        narrow = [layer(y) for layer, y in zip(self.narrow, wide, strict=True)]
        return sum(narrow, x)
