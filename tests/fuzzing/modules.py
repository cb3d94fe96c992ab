"""Random torch modules: what people write in `forward`, drawn from a seed."""

from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

Part = Callable[[np.random.Generator, int], nn.Module]
WIDTHS = (8, 12, 16, 24, 32)
CLASSES = 7


class Residual(nn.Module):
    """The input, added to what a part makes of it; scale: by a learned number of shape ()."""

    def __init__(self, inner: nn.Module, scale: bool) -> None:
        super().__init__()
        self.inner = inner
        self.scale = nn.Parameter(torch.tensor(0.6)) if scale else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        return x + (found if self.scale is None else self.scale * found)


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, width // 4), nn.Linear(width // 4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = self.up(F.silu(self.down(x.mean((2, 3))))).sigmoid()
        return x * gate[:, :, None, None]


class Shuffle(nn.Module):
    """Two halves of the channels, one of them through a layer, then shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(width // 2, width // 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, 1)
        both = torch.cat((left, F.relu(self.layer(right))), 1)
        batch, channels, height, width = both.shape
        return both.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


class Attention(nn.Module):
    """Over the positions of an image, or by torch's own layer."""

    def __init__(self, width: int, heads: int, own: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.packed = None if own else nn.Linear(width, 3 * width)
        self.out = nn.MultiheadAttention(width, heads, batch_first=True) if own else nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        tokens = self.norm(x.flatten(2).transpose(1, 2))
        if self.packed is None:
            found = self.out(tokens, tokens, tokens, need_weights=False)[0]
        else:
            apart = self.packed(tokens).reshape(batch, height * width, 3, self.heads, channels // self.heads)
            query, key, value = apart.permute(2, 0, 3, 1, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(query, key, value)
            found = self.out(mixed.transpose(1, 2).reshape(batch, height * width, channels))
        return x + found.transpose(1, 2).reshape(batch, channels, height, width)


class Recurrent(nn.Module):
    """Rows of an image as steps of a recurrent layer, whose last state scales the channels."""

    def __init__(self, width: int, kind: type[nn.RNNBase], both: bool) -> None:
        super().__init__()
        self.layer = kind(width, width, batch_first=True, bidirectional=both)  # type: ignore[arg-type, call-arg]
        self.out = nn.Linear(width * (2 if both else 1), width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found, _ = self.layer(x.mean(3).transpose(1, 2))
        return x * self.out(found[:, -1])[:, :, None, None].tanh()


class Branches(nn.Module):
    """Two layers side by side, joined or added."""

    def __init__(self, width: int, one: nn.Module, other: nn.Module, joined: bool) -> None:
        super().__init__()
        self.one, self.other = one, other
        self.mix = nn.Conv2d(2 * width, width, 1) if joined else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.one(x), self.other(x)
        return one + other if self.mix is None else self.mix(torch.cat((one, other), 1))


def _chance(rng: np.random.Generator, probability: float) -> bool:
    return bool(rng.random() < probability)


def _block(rng: np.random.Generator, width: int) -> nn.Module:
    hidden = int(rng.choice(WIDTHS))
    kernel = int(rng.choice((1, 3, 5)))
    norms = (nn.BatchNorm2d(hidden), nn.GroupNorm(4, hidden), nn.InstanceNorm2d(hidden, affine=True), nn.Identity())
    return nn.Sequential(
        nn.Conv2d(width, hidden, 1, bias=_chance(rng, 0.5)),
        norms[int(rng.integers(len(norms)))],
        (nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Hardswish())[int(rng.integers(4))],
        nn.Conv2d(hidden, width, kernel, padding=kernel // 2),
        nn.Dropout(0.1),
    )


PARTS: dict[str, Part] = {
    "block": _block,
    "residual": lambda rng, width: Residual(_block(rng, width), _chance(rng, 0.3)),
    "depthwise": lambda rng, width: nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, groups=width),
        nn.BatchNorm2d(width),
        nn.ReLU6(),
        nn.Conv2d(width, width, 1),
    ),
    "gate": lambda rng, width: Gate(width),
    "shuffle": lambda rng, width: Shuffle(width),
    "attention": lambda rng, width: Attention(width, int(rng.choice((1, 2, 4))), _chance(rng, 0.4)),
    "recurrent": lambda rng, width: Recurrent(width, nn.LSTM if _chance(rng, 0.5) else nn.GRU, _chance(rng, 0.3)),
    "branches": lambda rng, width: Branches(width, _block(rng, width), nn.Conv2d(width, width, 1), _chance(rng, 0.5)),
    "pool": lambda rng, width: nn.MaxPool2d(3, 1, 1) if _chance(rng, 0.5) else nn.AvgPool2d(2, 2, ceil_mode=True),
    "up": lambda rng, width: nn.Upsample(scale_factor=2, mode="nearest" if _chance(rng, 0.5) else "bilinear"),
    "weight norm": lambda rng, width: nn.utils.parametrizations.weight_norm(nn.Conv2d(width, width, 3, padding=1)),
    "pixel shuffle": lambda rng, width: nn.Sequential(
        nn.Conv2d(width, 4 * width, 1), nn.PixelShuffle(2), nn.MaxPool2d(2)
    ),
}
"""Parts that keep the number of channels of an image."""


def draw_module(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """A module in eval mode, part `seed` modulo their number among its parts, and a sample of its input."""
    rng = np.random.default_rng([12, seed])
    torch.manual_seed(seed)
    width, names = int(rng.choice(WIDTHS)), list(PARTS)
    chosen = [names[seed % len(names)], *(str(name) for name in rng.choice(names, int(rng.integers(0, 4))))]
    order = [chosen[int(i)] for i in rng.permutation(len(chosen))]
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=int(rng.choice((1, 2))), padding=1)]
    for name in order:
        parts.append(PARTS[name](rng, width))
        if _chance(rng, 0.4):
            wider = int(rng.choice(WIDTHS))
            parts.append(nn.Sequential(nn.Conv2d(width, wider, 1), nn.ReLU()))
            width = wider
    ends = (
        (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)),
        (nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(4 * width, CLASSES)),
        (nn.Conv2d(width, 2, 1),),
    )
    model = nn.Sequential(*parts, *ends[int(rng.integers(len(ends)))]).eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.2)  # type: ignore[union-attr]
                module.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    side = int(rng.choice((8, 8, 12, 16)))
    return model, torch.zeros(1, 3, side, side)
