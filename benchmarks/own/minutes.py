"""`minutes=N`: plan and truth, by stage and in total, of three networks.

python -m benchmarks.own.minutes [--minutes 3 10 30] [--networks photos keypoints series] [--work outputs/minutes]
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autotailor
from benchmarks.own import keypoints
from benchmarks.own.shown import fit
from flows.pipeline.stages.minutes import PLAN_FILE, Plan
from tasks.base.artifacts import read_json

SIZE, PICTURES = 64, 600
SYMBOLS, LENGTH = 6, 128


def photos(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An .onnx file of a ResNet-18 and a folder of pictures of gratings without labels."""
    file, pictures = folder / "net.onnx", folder / "pictures"
    if not file.exists():
        pictures.mkdir(parents=True, exist_ok=True)
        rng, (rows, columns) = np.random.default_rng(0), np.mgrid[:SIZE, :SIZE] / SIZE
        kinds = rng.integers(10, size=PICTURES)
        waves = [
            np.sin(40 * (np.cos(kind / 3) * rows + np.sin(kind / 3) * columns) + rng.uniform(0, 6)) for kind in kinds
        ]
        noisy = [np.clip(128 + 60 * wave[..., None] + rng.normal(0, 30, (SIZE, SIZE, 3)), 0, 255) for wave in waves]
        for number, pixels in enumerate(noisy):
            Image.fromarray(pixels.astype(np.uint8)).save(pictures / f"{number}.png")
        images = torch.from_numpy(np.stack(noisy)).float().permute(0, 3, 1, 2) / 255
        loader = DataLoader(TensorDataset(images, torch.from_numpy(kinds)), batch_size=64, shuffle=True)
        model = fit(timm.create_model("resnet18", num_classes=10), loader, nn.functional.cross_entropy, epochs=2)
        torch.onnx.export(model, (images[:1],), file, dynamo=True, external_data=False)
    return (file, pictures), {}


def of_keypoints(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Two keypoints, with own loss and score."""
    loader = DataLoader(keypoints.samples(2400), batch_size=64, shuffle=True)
    model = fit(keypoints.network(), loader, keypoints.loss, epochs=2)
    return (model, loader), {"loss": keypoints.loss, "score": keypoints.pck}


def series(folder: Path) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Series of three channels whose frequency is the class, by 1-D convolutions."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(SYMBOLS, (2000,), generator=generator)
    waves = torch.sin((kinds[:, None] + 2) * torch.linspace(0, 12, LENGTH))[:, None].repeat(1, 3, 1)
    loader = DataLoader(
        TensorDataset(waves + torch.randn(waves.shape, generator=generator), kinds), batch_size=64, shuffle=True
    )
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv1d(before, after, 5, 2, 2, bias=False), nn.BatchNorm1d(after), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, SYMBOLS))
    model = fit(network, loader, nn.functional.cross_entropy, epochs=2)

    def score(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.argmax(1) == targets).float()

    return (model, loader), {"loss": nn.functional.cross_entropy, "score": score}


NETWORKS: dict[str, Callable[[Path], tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "photos": photos,
    "keypoints": of_keypoints,
    "series": series,
}


def compared(name: str, minutes: float, work: Path) -> dict[str, float]:
    """Work one call in an empty folder, and print its plan beside the true seconds."""
    folder = work / f"{name}-{minutes:g}"
    given, options = NETWORKS[name](work / name)
    began_s = time.monotonic()
    found = autotailor.tailor(*given, **options, devices=["onnxruntime"], minutes=minutes, output_dir=folder)
    took_s = time.monotonic() - began_s
    (file,) = folder.glob(f"runs/*/{PLAN_FILE}")
    plan, true_s = Plan.read(file), dict[str, float]()
    for row in read_json(folder / "report.json")["stages"]:
        stage = row["stage"].partition("/")[0]
        true_s[stage] = true_s.get(stage, 0.0) + row["seconds"]
    print(f"\n{name}, {minutes:g} minutes: {found.headline}\n{'stage':20}{'plan s':>10}{'true s':>10}")
    for stage in plan.stages:
        print(f"{stage.stage:20}{stage.seconds:10.1f}{true_s.get(stage.stage, float('nan')):10.1f}   {stage.does}")
    chosen = {
        key: value for key, value in plan.settings.items() if key.partition(".")[0] in ("finetune", "search", "refine")
    }
    print(f"{'together':20}{plan.seconds:10.1f}{took_s:10.1f}   chosen: {chosen}")
    return {"took / N": took_s / (60 * minutes), "took / plan": took_s / plan.seconds}


def main() -> None:
    """Print each comparison, then both ratios of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, nargs="+", default=[3, 10, 30])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--work", type=Path, default=Path("outputs/minutes"))
    asked = parser.parse_args()
    found = {f"{name}, {n:g}": compared(name, n, asked.work) for name in asked.networks for n in asked.minutes}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
