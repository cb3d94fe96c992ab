"""A small real evaluation that tests run in this process or kill in another one.

`python evaluation_process.py FILE`
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch

import tailor_ir
from tasks.base.progress import Silent
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import Accuracy, EvaluationData, EvaluationResources, accuracies
from tasks.prediction.accuracy import modifications

RESOLUTIONS = [24, 28, 32]


def network() -> tailor_ir.SuperNet:
    """A SuperNet with BatchNorm, depth, width, expansions and three resolutions; the same in every process."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=10).eval()
    wish: Any = {"resolution": RESOLUTIONS, "*.depth": "auto", "*.width_mult": "auto", "*.expand_ratio": "auto"}
    return tailor_ir.compile(model, torch.zeros(1, 3, 32, 32), wish)


def candidates(net: tailor_ir.SuperNet, random: int = 24) -> list[dict[str, Any]]:
    """A sweep over all variables, and random SubNets."""
    rng = np.random.default_rng(1)
    return [*modifications(net.space), *(net.space.sample(rng) for _ in range(random))]


def images(split: Any = "validation", features_mib: float = 64, **options: Any) -> EvaluationData:
    """Digits; few of them, unless said otherwise."""
    splits = load_splits(DataSettings(kind="digits"))
    options = {"recalibration_images": 96, "batch_size": 64, "limit": 150} | options
    resources = EvaluationResources(features_mib=features_mib)
    return EvaluationData(splits[split], splits["train"], resources=resources, **options)


def evaluate(file: Path) -> list[Accuracy]:
    """All candidates."""
    net = network()
    return accuracies(net, candidates(net), images(), file, Silent())


if __name__ == "__main__":
    evaluate(Path(sys.argv[1]))
