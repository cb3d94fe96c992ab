"""Small networks with every kind of shared weight: what one SubNet cuts, resamples, looks up or computes from others."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import tailor_ir
from tailor_ir.spaces.selectors import Config
from tests.support.ir.networks import perturb, small_net


class Residual(nn.Module):
    """x + body(x)."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Convolutional(nn.Module):
    """Stem, blocks of 16 channels, classifier."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


class StandardisedConv(nn.Conv2d):
    """A convolution whose weight is standardised for each output channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0)
        return F.conv2d(x, flat.reshape_as(self.weight), self.bias, padding=1)


def inverted(kernel: int) -> nn.Module:
    """Expansion, depthwise convolution, projection, each with BatchNorm."""
    return Residual(
        nn.Sequential(
            nn.Conv2d(16, 32, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, kernel, padding=kernel // 2, groups=32),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 16, 1),
        )
    )


def grouped() -> nn.Module:
    """Expansion, grouped convolution and GroupNorm, projection."""
    inside = (nn.Conv2d(64, 64, 3, padding=1, groups=8), nn.GroupNorm(8, 64))
    return Residual(nn.Sequential(nn.Conv2d(16, 64, 1), *inside, nn.ReLU(), nn.Conv2d(64, 16, 1)))


def standardised() -> nn.Module:
    """Two convolutions with standardised weights."""
    return Residual(
        nn.Sequential(StandardisedConv(16, 32, 3, padding=1), nn.ReLU(), StandardisedConv(32, 16, 3, padding=1))
    )


class Attention(nn.Module):
    """Attention over `side` × `side` positions, values wider than keys, optionally with a bias by relative position."""

    index: torch.Tensor

    def __init__(self, width: int, side: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.key, self.value = 4, 8, 16
        self.q, self.k = nn.Linear(width, 32), nn.Linear(width, 32)
        self.v, self.out = nn.Linear(width, 64), nn.Linear(64, width)
        self.bias = nn.Parameter(torch.randn(self.heads, (2 * side - 1) ** 2)) if bias else None
        row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        place = torch.stack([row.reshape(-1), column.reshape(-1)])
        apart = place[:, :, None] - place[:, None, :] + side - 1
        self.register_buffer("index", apart[0] * (2 * side - 1) + apart[1], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        score = q @ k.transpose(-2, -1) * self.key**-0.5
        if self.bias is not None:
            score = score + self.bias[:, self.index]
        return self.out((score.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Patches, `depth` blocks of attention and FFN with LayerNorm before each, classifier."""

    def __init__(self, *, embedding: bool, bias: bool, side: int = 4, depth: int = 2) -> None:
        super().__init__()
        width = 32
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.position = nn.Parameter(torch.randn(1, side**2, width)) if embedding else None
        self.blocks = nn.Sequential()
        for _ in range(depth):
            ffn = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
            attention = nn.Sequential(nn.LayerNorm(width), Attention(width, side, bias))
            self.blocks.extend([Residual(attention), Residual(ffn)])
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x if self.position is None else x + self.position
        return self.head(self.blocks(x).mean(1))


class UsedTwice(nn.Module):
    """One block at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.block = inverted(3)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head(self.block(torch.relu(self.block(x))).mean((2, 3)))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolution and BatchNorm": small_net,
    "depthwise convolution, centre of the kernel": lambda: Convolutional(inverted(5), inverted(5)),
    "grouped convolution and GroupNorm": lambda: Convolutional(grouped(), grouped()),
    "standardised weights": lambda: Convolutional(standardised(), standardised()),
    "attention, linear and LayerNorm": lambda: Transformer(embedding=False, bias=False),
    "position embedding, resampled": lambda: Transformer(embedding=True, bias=False),
    "relative position bias, looked up and resampled": lambda: Transformer(embedding=False, bias=True),
    "one module used twice": UsedTwice,
}


def network(name: str) -> nn.Module:
    """One of the networks, all weights and statistics different."""
    torch.manual_seed(0)
    model = perturb(NETWORKS[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return model


def compiled(name: str) -> tailor_ir.SuperNet:
    """The SuperNet of one of the networks."""
    return tailor_ir.compile(network(name), torch.zeros(1, 3, 32, 32))


def complete(net: tailor_ir.SuperNet, config: Config) -> Config:
    """The config with all blocks."""
    depths = {v.name: v.default for v in net.space.variables if v.kind == "depth"}
    return net.space.canonical(net.space.max_config | config | depths)


def sample_input(net: tailor_ir.SuperNet, config: Config, batch: int = 2, seed: int = 0) -> torch.Tensor:
    """A random batch at the config's resolution."""
    return torch.randn(net.input_shape(config, batch), generator=torch.Generator().manual_seed(seed))
