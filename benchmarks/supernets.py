"""SuperNets with random weights, by the names that benchmarks take: NETWORK[@PIXELS]."""

from pathlib import Path
from typing import Any

import timm
import torch

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.elastic import PRESETS, compiled
from tailor_ir import SuperNet
from tasks.measuring import operators as enumeration

SUPERNET_FOLDER = "supernet"


def supernet_of(name: str, **options: Any) -> SuperNet:
    """A preset, or a network of timm with the space that is proposed for it; without pixels at the network's own size.

    options: of `timm.create_model`.
    """
    network, _, pixels = name.partition("@")
    if network in PRESETS:
        return compiled(network)
    torch.manual_seed(0)
    model = timm.create_model(network, **options).eval()
    known: Any = model.pretrained_cfg
    shape = (3, int(pixels), int(pixels)) if pixels else known["input_size"]
    return tailor_ir.compile(model, torch.zeros(1, *shape))


def saved(name: str, folder: Path) -> Path:
    """The SuperNet in a folder, with its operators beside it; what is there is not made again."""
    path = folder / SUPERNET_FOLDER
    if not path.exists():
        supernet_of(name).save(path)
        enumeration.run(path, folder, Terminal())
    return path
