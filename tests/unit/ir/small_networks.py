"""Small networks in which the order of features matters in one place, and may be changed in others.

Legend: B batch, C channels, H height, W width, T steps, F features, K classes.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

Shape = tuple[int, ...]


class Eca(nn.Module):
    """A gate for each channel, computed from its neighbours by a Conv1d over the channels' means (ECA-Net)."""

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.block = nn.Conv2d(width, width, 3, padding=1)
        self.near = nn.Conv1d(1, 1, 5, padding=2, bias=False)
        self.head = nn.Linear(width, classes)
        nn.init.normal_(self.near.weight, std=4.0)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.block(F.relu(self.norm(self.stem(x_BCHW)))))
        gate_BC = self.near(x.mean((2, 3))[:, None]).sigmoid()[:, 0]
        return self.head((x * gate_BC[:, :, None, None]).mean((2, 3)))


class LinearThenConv(nn.Module):
    """Features of a linear layer as the positions of a Conv1d."""

    def __init__(self, classes: int = 10, inputs: int = 64) -> None:
        super().__init__()
        self.features, self.near, self.head = (
            nn.Linear(inputs, 64),
            nn.Conv1d(1, 16, 5, padding=2),
            nn.Linear(16, classes),
        )

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.near(F.relu(self.features(x_BCHW.flatten(1)))[:, None])).amax(2))


class MelBands(nn.Module):
    """Learned bands of a signal (B, 1, T), and a Conv2d over bands and time."""

    def __init__(self, classes: int = 10, stride: int = 1) -> None:
        super().__init__()
        self.bands = nn.Conv1d(1, 40, 16, 8)
        self.image = nn.Sequential(
            nn.Conv2d(1, 24, 3, stride, 1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 24, 3, (1, 2), 1)
        )
        self.head = nn.Linear(24, classes)

    def forward(self, x_BCT: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.image(F.relu(self.bands(x_BCT))[:, None])).mean((2, 3)))


class EnvNet(nn.Module):
    """Bands as rows of an image, whose convolved positions are flattened."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.bands = nn.Conv1d(1, 40, 8, 8)
        self.image = nn.Conv2d(1, 24, 3, 2, 1)
        self.head = nn.Linear(24 * 20 * 8, classes)

    def forward(self, x_BCT: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.image(F.relu(self.bands(x_BCT))[:, None])).flatten(1))


class WeightedSums(nn.Module):
    """Maps of two sizes, added with learned positive weights that sum to one (BiFPN)."""

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, 2, 1)
        self.top, self.both = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.shares = nn.Parameter(torch.tensor([0.7, 1.3]))
        self.head = nn.Linear(width, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        large = F.relu(self.stem(x_BCHW))
        small = F.relu(self.top(F.relu(self.down(large))))
        shares = F.relu(self.shares)
        shares = shares / (shares.sum() + 1e-4)
        both = shares[0] * large + shares[1] * F.interpolate(small, scale_factor=2.0, mode="nearest")
        return self.head(F.relu(self.both(both)).mean((2, 3)))


class Transformer(nn.Module):
    """LayerNorm first, over the rows of an image; `groups` key heads, each for several query heads."""

    def __init__(self, classes: int = 10, side: int = 8, width: int = 32, heads: int = 4, groups: int = 4) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.embed = nn.Linear(side, width)
        self.places = nn.Parameter(torch.randn(1, side, width) * 0.1)
        self.first, self.second, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key, self.value = (nn.Linear(width, groups * self.size) for _ in range(2))
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x_BTF = self.embed(x_BCHW[:, 0]) + self.places
        x_BTF = x_BTF + self.out(self.attended(self.first(x_BTF)))
        x_BTF = x_BTF + self.narrow(F.gelu(self.wide(self.second(x_BTF))))
        return self.head(self.last(x_BTF).mean(1))

    def attended(self, x_BTF: torch.Tensor) -> torch.Tensor:
        """Softmax attention, keys and values shared by neighbouring heads."""
        batch, steps, _ = x_BTF.shape
        q = self.query(x_BTF).reshape(batch, steps, self.heads, self.size).transpose(1, 2)
        k, v = (
            layer(x_BTF).reshape(batch, steps, self.groups, self.size).transpose(1, 2)
            .repeat_interleave(self.heads // self.groups, 1)
            for layer in (self.key, self.value)
        )  # fmt: skip
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, steps, -1)


class TiedEmbeddings(nn.Module):
    """One table for tokens that come in and for the answer's scores."""

    def __init__(self, tokens: int = 17, width: int = 32) -> None:
        super().__init__()
        self.table = nn.Embedding(tokens, width)
        self.inner, self.outer = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
        x_BTF = self.table(x_BT)
        x_BF = (x_BTF + self.outer(F.relu(self.inner(x_BTF)))).mean(1)
        return F.linear(x_BF, self.table.weight)


class PooledChannels(nn.Module):
    """Means of neighbouring features; `flat`: their number decides the size of the next layer."""

    def __init__(self, classes: int = 10, inputs: int = 64, flat: bool = True) -> None:
        super().__init__()
        self.a, self.b, self.flat = nn.Linear(inputs, 80), nn.Linear(inputs, 80), flat
        self.head = nn.Linear(16 if flat else 1, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x_BF = x_BCHW.flatten(1)
        pooled = F.avg_pool1d((self.a(x_BF) * self.b(x_BF))[:, None], 5, 5)[:, 0]
        return self.head(pooled if self.flat else pooled.amax(1, keepdim=True))


class Cumulated(nn.Module):
    """Running sums over features."""

    def __init__(self, classes: int = 10, inputs: int = 64) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(inputs, 64), nn.Linear(64, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.features(x_BCHW.flatten(1))).cumsum(1) / 8)


class Shuffled(nn.Module):
    """Grouped convolutions, group norm and shuffled channels (ShuffleNet)."""

    def __init__(self, classes: int = 10, channels: int = 1, width: int = 32, groups: int = 4) -> None:
        super().__init__()
        self.stem, self.groups = nn.Conv2d(channels, width, 3, padding=1), groups
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, groups=groups) for _ in range(2))
        self.norm = nn.GroupNorm(groups, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.first(F.relu(self.stem(x_BCHW)))))
        batch, width, height, breadth = x.shape
        x = x.reshape(batch, self.groups, width // self.groups, height, breadth).transpose(1, 2)
        return self.head(F.relu(self.second(x.reshape(batch, width, height, breadth))).mean((2, 3)))


class Features(nn.Module):
    """Features of a linear layer, what is done to them, and a linear layer on the result."""

    def __init__(self, between: Callable[[torch.Tensor], torch.Tensor], inputs: int = 12, width: int = 40) -> None:
        super().__init__()
        self.features, self.between, self.second = nn.Linear(inputs, width), between, nn.Linear(width, width)
        with torch.no_grad():
            results = between(self.second(self.features(torch.zeros(1, inputs))))
        self.head = nn.Linear(results.shape[-1], 7)

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        return self.head(self.between(self.second(F.relu(self.features(x_BF)))))
