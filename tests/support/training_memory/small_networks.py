"""Small random networks of three families, with what a training step needs."""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasks.training.memory import MemoryPlan, StorageCount, step, tensors_of

BATCH, CLASSES, SIZE = 4, 5, 16


class ResidualBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.last_norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.last_norm(self.second(self.relu(self.norm(self.first(x)))))
        y += self.shortcut(x)
        return self.relu(y)


class InvertedBlock(nn.Module):
    def __init__(self, width: int, expansion: int) -> None:
        super().__init__()
        hidden = width * expansion
        self.body = nn.Sequential(
            nn.Conv2d(width, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, 1, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return x + y * self.squeeze(y)


class AttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x_BNC: Tensor) -> Tensor:
        b, n, c = x_BNC.shape
        q, k, v = self.qkv(self.norms[0](x_BNC)).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x_BNC = x_BNC + self.project(mixed)
        return x_BNC + self.mlp(self.norms[1](x_BNC))


class Tokens(nn.Module):
    """Patches, a class token, and places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, SIZE * SIZE // 16 + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places


class First(nn.Module):
    def forward(self, x_BNC: Tensor) -> Tensor:
        return x_BNC[:, 0]


def make(family: str, seed: int) -> nn.Sequential:
    """A network with random widths and depth, in training mode."""
    torch.manual_seed(seed)
    width, depth = int(torch.randint(2, 5, ())) * 8, int(torch.randint(1, 4, ()))
    if family == "vit":
        layers = [AttentionBlock(width, 2) for _ in range(depth)]
        return nn.Sequential(Tokens(width), *layers, nn.LayerNorm(width), First(), nn.Linear(width, CLASSES)).train()
    stem: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks: list[nn.Module]
    if family == "resnet":
        stem.append(nn.MaxPool2d(3, 2, 1))
        blocks = [ResidualBlock(width, width, 1 + number % 2) for number in range(depth)]
    else:
        blocks = [InvertedBlock(width, 3) for _ in range(depth)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)).train()


def freeze_but_norms(module: nn.Module) -> None:
    for part in module.modules():
        own = isinstance(part, nn.BatchNorm2d | nn.LayerNorm)
        for p in part.parameters(recurse=False):
            p.requires_grad_(own)


def batch(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    return x, torch.randint(CLASSES, (BATCH,), generator=generator)


def plain_step(module: nn.Module) -> tuple[nn.Module, float]:
    """A copy of the module with gradients of plain torch, and the counted peak [MiB]."""
    twin = copy.deepcopy(module)
    x, y = batch()
    with StorageCount([*tensors_of(twin), x]) as count:
        functional.cross_entropy(twin(x), y).backward()
    return twin, count.peak_mib


def lean_step(plan: MemoryPlan, module: nn.Module) -> tuple[nn.Module, float]:
    """The same by a plan, without an update."""
    twin = copy.deepcopy(module)
    x, y = batch()
    with StorageCount([*tensors_of(twin), x]) as count:
        step(plan, twin, x, functional.cross_entropy, target=y)
    return twin, count.peak_mib


def gradients(module: nn.Module) -> Tensor:
    """All gradients in one row."""
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def buffers(module: nn.Module) -> Tensor:
    return torch.cat([b.flatten().float() for b in module.buffers()] or [torch.zeros(1)])
