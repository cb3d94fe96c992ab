"""Several SubNets in one folder: bytes against single files, and what that costs to load and to run.

    python -m benchmarks.bundles [--subnets 8] [--json FILE]

The largest SubNet, the smallest and random ones of three networks with random weights, BatchNorm statistics of their own.
Megabytes of: single ONNX files with BatchNorm folded; the different tensors in these; the different tensors where BatchNorm is
not folded; the bundle. Latencies are the shortest of 30 runs on one thread, ratios those of the bundle to single files.
"""

import argparse
import hashlib
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import onnx
import onnxruntime
import timm
import torch
from rich.console import Console
from rich.table import Table

import tailor_ir
from tests.support.ir.networks import perturb

NETWORKS = {"resnet50": 128, "mobilenetv3_large_100": 128, "vit_tiny_patch16_224": 224}
RUNS = 30
MB = 1e6


def measure(name: str, size: int, subnets: int, folder: Path) -> dict[str, float | str]:
    """One row of the table."""
    torch.manual_seed(0)
    network = perturb(timm.create_model(name, num_classes=100).eval())
    net = tailor_ir.compile(network, torch.zeros(1, 3, size, size))
    rng = np.random.default_rng(0)
    configs = [net.max_config, net.min_config, *(net.space.sample(rng) for _ in range(subnets - 2))]
    inputs = [torch.randn(net.input_shape(config, 4)) for config in configs]
    chosen = {
        str(i): (config, net.recalibrate(config, [x]))
        for i, (config, x) in enumerate(zip(configs, inputs, strict=True))
    }
    together, alone, plain = (folder / part for part in ("together", "alone", "plain"))
    for part in (together, alone, plain):
        part.mkdir()
    net.export_together(chosen, together)
    rows = []
    for (key, (config, statistics)), x in zip(chosen.items(), inputs, strict=True):
        file = f"{key}.onnx"
        net.export(config, alone / file, statistics=statistics, fold_batch_norm=True)
        net.export(config, plain / file, statistics=statistics)
        rows.append(_compare(alone / file, together / file, x[:1].numpy()))
    return {
        "network": name,
        "single_mb": _bytes(alone) / MB,
        "different_folded_mb": _different(alone) / MB,
        "different_mb": _different(plain) / MB,
        "bundle_mb": _bytes(together) / MB,
        "load_single_ms": mean(row[0] for row in rows),
        "load_ms": mean(row[1] for row in rows),
        "latency_ratio": median(row[2] for row in rows),
        "difference": max(row[3] for row in rows),
    }


def _compare(alone: Path, together: Path, x: np.ndarray) -> tuple[float, float, float, float]:
    """Loading [ms] of both, the ratio of latencies, the difference of outputs."""
    (first, load_alone_ms), (second, load_ms) = _session(alone), _session(together)
    feed = {first.get_inputs()[0].name: x}
    best_ms = [np.inf, np.inf]
    for _ in range(RUNS):
        for number, session in enumerate((first, second)):
            start = time.perf_counter()
            session.run(None, feed)
            best_ms[number] = min(best_ms[number], time.perf_counter() - start)
    expected, got = (session.run(None, feed)[0] for session in (first, second))
    difference = float(np.abs(got - expected).max() / np.abs(expected).max())
    return load_alone_ms, load_ms, best_ms[1] / best_ms[0], difference


def _session(file: Path) -> tuple[onnxruntime.InferenceSession, float]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    start = time.perf_counter()
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return session, 1e3 * (time.perf_counter() - start)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _different(folder: Path) -> int:
    """Bytes of the tensors in all files, equal ones once."""
    tensors = (tensor for file in folder.iterdir() for tensor in onnx.load(file).graph.initializer)
    return sum({hashlib.sha256(tensor.raw_data).digest(): len(tensor.raw_data) for tensor in tensors}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subnets", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for name, size in NETWORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(name, size, arguments.subnets, Path(folder)))
    table = Table(title=f"{arguments.subnets} SubNets")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.3g}" for value in row.values()))
    Console(width=200).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
