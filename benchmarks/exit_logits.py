"""Logits of a small network with four exits, on glyphs: real answers to try policies of exits on.

    python -m benchmarks.exit_logits FILE.npz [--images 40000] [--classes 24] [--epochs 6] [--seed 0]

A network of four stages, with a pool and a linear layer behind each, is trained on all its exits together (mean of their
losses). FILE.npz has what `benchmarks.exit_promise` reads: `logits` (N, E, K) and `labels` (N,) of images that were not trained
on, and `latency_ms` (E,), the median time of one image until each exit in torch on one thread.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tasks.data import DataSettings, load

WIDTHS = (24, 48, 96, 160)
BATCH = 128
RUNS = 60


class Staged(nn.Module):
    """Four stages, each at half the resolution of the one before, with a head each."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        sides = zip((3, *WIDTHS[:-1]), WIDTHS, strict=True)
        self.stages = nn.ModuleList(nn.Sequential(layer(*side, 2), layer(side[1], side[1], 1)) for side in sides)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes)) for width in WIDTHS
        )

    def forward(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """Logits of all exits (B, E, K)."""
        answers = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x_BCHW = stage(x_BCHW)
            answers.append(head(x_BCHW))
        return torch.stack(answers, 1)


def layer(before: int, width: int, stride: int) -> nn.Module:
    """A convolution, normalised."""
    return nn.Sequential(
        nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
    )


def train(network: Staged, settings: DataSettings, epochs: int, seed: int) -> None:
    """On the mean loss of all exits."""
    images = load(settings, "train")
    steps = epochs * images.steps(BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps)
    for epoch in range(epochs):
        for x_BCHW, y_B in images.batches(BATCH, seed=seed, epoch=epoch):
            logits_BEK = network(x_BCHW)
            loss = functional.cross_entropy(logits_BEK.transpose(1, 2), y_B[:, None].expand(-1, len(WIDTHS)))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def answers(network: Staged, settings: DataSettings) -> tuple[np.ndarray, np.ndarray]:
    """Logits (N, E, K) and labels (N,) of the splits that were not trained on."""
    held_out = [batch for split in ("validation", "test") for batch in load(settings, split).batches(256)]
    logits = [network(x_BCHW).numpy() for x_BCHW, _ in held_out]
    return np.concatenate(logits), np.concatenate([y_B.numpy() for _, y_B in held_out])


@torch.no_grad()
def latencies(network: Staged, size: int) -> np.ndarray:
    """Median time until each exit, all heads on the way counted [ms]. Returns (E,)."""
    seconds_RE = np.empty((RUNS, len(WIDTHS)))
    for run in range(RUNS):
        x_BCHW = torch.randn(1, 3, size, size)
        start = time.perf_counter()
        for place, (stage, head) in enumerate(zip(network.stages, network.heads, strict=True)):
            x_BCHW = stage(x_BCHW)
            head(x_BCHW)
            seconds_RE[run, place] = time.perf_counter() - start
    return 1e3 * np.median(seconds_RE[RUNS // 3 :], 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE.npz")
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--classes", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    settings = DataSettings(
        kind="glyphs",
        images=options.images,
        classes=options.classes,
        resolution=48,
        validation_share=0.1,
        test_share=0.45,
        seed=options.seed,
    )
    network = Staged(options.classes)
    train(network, settings, options.epochs, options.seed)
    network.eval()
    logits_NEK, labels_N = answers(network, settings)
    latency_ms_E = latencies(network, settings.resolution)
    np.savez_compressed(options.file, logits=logits_NEK, labels=labels_N, latency_ms=latency_ms_E)
    right_E = (logits_NEK.argmax(2) == labels_N[:, None]).mean(0)
    for place, (right, ms) in enumerate(zip(right_E, latency_ms_E, strict=True)):
        print(f"exit {place}: accuracy {right:.3f}, {ms:.2f} ms")


if __name__ == "__main__":
    main()
