"""What ONNX Runtime takes for SubNets, as a check on predictions."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailor_ir.memory.runtime_memory import HERE, Peaks, runtime

__all__ = ["HERE", "runtime", "subnet_peaks"]


def subnet_peaks(net: Any, configs: Sequence[Any], folder: Path) -> list[Peaks]:
    """Of SubNets as they are exported for devices, batch 1, on random images."""
    rng, found = np.random.default_rng(0), []
    for config in configs:
        path = folder / "subnet.onnx"
        net.export(config, path, fold_batch_norm=True)
        x_BCHW = rng.standard_normal(net.input_shape(config)).astype(np.float32)
        found.append(runtime().peaks(path.read_bytes(), x_BCHW))
    return found
