"""How many nodes `autotailor convert` leaves, and how fast onnxruntime is then, beside onnxslim alone.

    python -m benchmarks.conversion [--work DIR] [NETWORK | FILE.onnx=SHAPE …]

Without names, the 60 networks of `benchmarks/zoo.txt`, from timm with random weights that are all different, at their own
input size. Their original is what `torch.onnx.export(dynamo=False)` writes with its defaults: constants folded, and BatchNorms
that follow a convolution. SHAPE, as 1,3,640,640, is that of the input of a file. Nodes are counted without `Constant`.

Milliseconds are the median time of the process in onnxruntime with its default optimisations, one thread, in turn. "fewest" is
fewest=true, which also takes nodes out of Gelus. The difference is the largest one of an output of `convert` for random inputs,
relative to the largest number of that output, when onnxruntime runs both files as they are. DIR keeps the exported files.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from benchmarks.zoo import NETWORKS

TIMED_ROUNDS = 11
HEADS = ("original", "onnxslim", "convert", "fewest")


def exported(name: str, file: Path) -> None:
    """Write a network of timm as torch exports it."""
    import timm
    import torch

    from tailor_ir.reading.symbolics import more_operators
    from tailor_ir.reading.trace import OPSET, plain_attention
    from tests.support.ir.networks import perturb

    torch.manual_seed(0)
    model = _varied(perturb(timm.create_model(name)))
    known: Any = model.pretrained_cfg
    sample = torch.randn(1, *known["input_size"])
    with torch.no_grad(), more_operators(OPSET), plain_attention():
        torch.onnx.export(model, (sample,), str(file), dynamo=False, opset_version=OPSET)


def _varied(model: Any) -> Any:
    """The network with other numbers in weights that start equal: a bias of zeros is no bias, and could be left out."""
    import torch

    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                weight.add_((torch.rand(weight.shape, generator=generator) - 0.5) * 0.1)
    return model


def measure(name: str, folder: Path) -> str:
    """A row of the table for a network of timm, or a file and the shape of its input."""
    import onnxslim

    import tailor_ir
    from tailor_ir.conversion import count_nodes

    path, _, shape = name.partition("=")
    file = Path(path) if shape else folder / f"{name}.onnx"
    if not file.exists():
        exported(name, file)
    model, found = onnx.load(file), tailor_ir.convert(file)
    models = [model, onnxslim.slim(onnx.load(file)), found.model, tailor_ir.convert(file, fewest=True).model]
    latencies_ms = _latencies_ms(models, [int(size) for size in shape.split(",")] if shape else None)
    undone = "; ".join(f"{rule.name}: {rule.reason}" for rule in found.undone) or "–"
    cells = [
        file.stem,
        *map(count_nodes, models),
        *(f"{each:.1f}" for each in latencies_ms),
        f"{found.difference:.1e}",
        undone,
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _latencies_ms(models: Sequence[onnx.ModelProto], shape: Sequence[int] | None) -> list[float]:
    """Median latencies of models that take the same input, of this shape where the models leave it open."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for model in models
    ]
    given = sessions[0].get_inputs()[0]
    inputs = {given.name: np.random.default_rng(0).standard_normal(shape or given.shape).astype(np.float32)}
    times_ms: list[list[float]] = [[] for _ in sessions]
    for round_ in range(TIMED_ROUNDS + 1):
        for session, row in zip(sessions, times_ms, strict=True):
            start = time.process_time()
            session.run(None, inputs)
            if round_:  # the first one warms up
                row.append(1e3 * (time.process_time() - start))
    return [statistics.median(row) for row in times_ms]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK|FILE=SHAPE")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keeps the exported files")
    arguments = parser.parse_args()
    heads = (
        "network",
        *(f"{head}, nodes" for head in HEADS),
        *(f"{head}, ms" for head in HEADS),
        "difference",
        "undone",
    )
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.networks or NETWORKS.read_text().split():
            print(measure(name, folder), flush=True)


if __name__ == "__main__":
    main()
