"""Samples of a garden: a photo, a noise, a note and numbers, in a table with files; and a network that takes them by name.

Shapes: B batch, C channels, H height, W width, T words, V numbers.
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from scipy.io import wavfile
from torch import nn

from tasks.data import DataSettings
from tests.support.ir.networks import ResidualBlock

SIDE, WORDS, RATE_HZ, CLIP_S = 16, 6, 4000, 0.25
NOTES = {
    "dry": ("the soil is dry", "dry again,\nand warm"),
    "wet": ("wet leaves", "it is wet after the rain of last night"),
}
"""By what the class is told of; one has two lines, and one more words than a network takes."""
HEAD = ("photo", "noise", "note", "celsius", "label")
INPUTS: dict[str, Any] = {"photo": "image", "noise": "sound", "note": "text", "weather": ("celsius",)}


def written(folder: Path, rows: int = 48) -> Path:
    """A table whose labels are of a photo (dark, bright), a noise (low, high) and a note (dry, wet): eight classes."""
    (folder / "files").mkdir(parents=True)
    rng = np.random.default_rng(0)
    time_T = np.arange(round(CLIP_S * RATE_HZ)) / RATE_HZ
    for name, level in (("dark", 60), ("bright", 190)):
        pixels = np.clip(rng.normal(level, 20, (20, 20, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "files" / f"{name}.png")
    for name, pitch_hz in (("low", 200), ("high", 1500)):
        sound_T = 0.5 * np.sin(2 * np.pi * pitch_hz * time_T) + rng.normal(0, 0.02, len(time_T))
        wavfile.write(folder / "files" / f"{name}.wav", RATE_HZ, (sound_T * 32767).astype(np.int16))
    with (folder / "days.csv").open("w", newline="") as stream:
        lines = csv.writer(stream)
        lines.writerow(HEAD)
        for row in range(rows):
            light, pitch, soil = (
                ("dark", "bright")[row % 2],
                ("low", "high")[row // 2 % 2],
                ("dry", "wet")[row // 4 % 2],
            )
            note = NOTES[soil][row // 8 % 2]
            label = f"{light} {pitch} {soil}"
            lines.writerow([f"files/{light}.png", f"files/{pitch}.wav", note, round(20 + rng.normal(), 2), label])
    return folder


def settings(folder: Path, **options: Any) -> DataSettings:
    """Of the table of a folder."""
    found = {"inputs": INPUTS, "resolution": SIDE, "words": WORDS, "clip_s": CLIP_S, "augment": False, **options}
    return DataSettings.model_validate({"kind": "table", "path": folder, "workers": 1, **found})


class Garden(nn.Module):
    """photo (B, C, H, W), noise (B, 1, H, W), note (B, T) int64 and weather (B, V) -> (B, classes) logits."""

    def __init__(self, classes: int, shapes: Mapping[str, tuple[int, ...]], words: int) -> None:
        super().__init__()
        self.photo, self.noise = (self._seen(shapes[name][0]) for name in ("photo", "noise"))
        self.words = nn.Embedding(words, 16)
        self.layers = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.joined = nn.Sequential(nn.Linear(2 * 8 + 16 + shapes["weather"][0], 16), nn.ReLU(), nn.Linear(16, classes))

    @staticmethod
    def _seen(channels: int) -> nn.Sequential:
        stem = nn.Conv2d(channels, 8, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(stem, nn.BatchNorm2d(8), nn.ReLU(), ResidualBlock(8, 16))

    def forward(
        self, photo: torch.Tensor, noise: torch.Tensor, note: torch.Tensor, weather: torch.Tensor
    ) -> torch.Tensor:
        words_BTC = self.words(note)
        read_BC = (words_BTC + self.layers(words_BTC)).mean(1)
        seen = [self.photo(photo).mean((2, 3)), self.noise(noise).mean((2, 3)), read_BC, weather]
        logits_BK: torch.Tensor = self.joined(torch.cat(seen, 1))
        return logits_BK


def network(num_classes: int, shapes: Mapping[str, tuple[int, ...]], num_words: int) -> nn.Module:
    """With random weights."""
    return Garden(num_classes, shapes, num_words)
