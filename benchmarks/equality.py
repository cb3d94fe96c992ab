"""Largest SubNet = original, and elastic = built = exported, for eight timm networks of four families.

    python -m benchmarks.equality [--subnets 20] [--json FILE]

Networks start from random weights with BatchNorm statistics and scales that are all different. Differences are the
largest absolute one over all outputs, relative to the largest output.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import tailor_ir
from tests.support.ir.invariants import difference
from tests.support.ir.networks import FAMILIES, from_timm


@torch.no_grad()
def measure(name: str, subnets: int, folder: Path) -> dict[str, float | int | str]:
    """The differences of one network."""
    model, sample = from_timm(name)
    net = tailor_ir.compile(model, sample)
    net.elastic.eval()
    x = torch.randn(net.input_shape(net.max_config, 8))
    net.elastic.activate(net.max_config)
    original = difference(model(x), net.elastic(x))
    rng = np.random.default_rng(0)
    built, exported = 0.0, 0.0
    for config in [net.space.sample(rng) for _ in range(subnets)]:
        x = torch.randn(net.input_shape(config, 2))
        net.elastic.activate(config)
        expected = net.elastic(x)
        built = max(built, difference(expected, net.build(config)(x)))
        net.export(config, folder / "subnet.onnx", fold_batch_norm=True, batch=2)
        session = onnxruntime.InferenceSession(folder / "subnet.onnx", providers=["CPUExecutionProvider"])
        output = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
        exported = max(exported, difference(expected, output))
    return {
        "network": name,
        "variables": len(net.space.variables),
        "distinct": str(net.space.distinct),
        "largest_vs_original": original,
        "elastic_vs_built": built,
        "elastic_vs_onnxruntime": exported,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subnets", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(name, arguments.subnets, Path(folder)) for name in track(FAMILIES, "networks")]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.1e}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=140).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
