"""How many nodes `autotailor convert` leaves, beside onnxslim, onnxsim and onnxruntime's basic optimisation.

    python -m benchmarks.conversion [--work DIR] [--json FILE] [--markdown] [NETWORK …]
    python -m benchmarks.conversion --time [--work DIR] NETWORK …

Without names, the 60 networks of `benchmarks/zoo.txt`, from timm with random weights that are all different, at their own
input size, each in a process of its own, on one thread. The original is what `torch.onnx.export(dynamo=False)` writes
with its defaults: constants folded, and BatchNorms that follow a convolution. The peers get the same file, with their defaults;
onnxruntime writes the model that it has optimised offline at its level "basic". Nodes are counted without `Constant`.
Differences: the largest one of an output for random inputs, relative to the largest number of that output, when onnxruntime
runs both files as they are. "fewest": with fewest=true, which also takes nodes out of Gelus. DIR keeps a file for each
network; a second run goes on from there.

--time: the latency of the original and of both results in onnxruntime with its default optimisations, one thread, in turn.

onnxslim and onnxsim are no dependencies: pip install --no-deps onnxslim onnxsim
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.zoo import NETWORKS

OURS = ("ours", "fewest")
PEERS = ("onnxslim", "onnxsim", "onnxruntime")
COLUMNS = (*OURS, *PEERS)
LIMIT_S = 1200
TIMED_ROUNDS = 11
TOLERANCE = 1e-5
MORE_NODES = 3
"""Networks on which the best peer may leave fewer nodes."""

Row = dict[str, Any]


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


def ours(model: onnx.ModelProto, fewest: bool) -> tuple[onnx.ModelProto, list[str]]:
    """The converted model, and the rules that were undone."""
    import tailor_ir

    found = tailor_ir.convert(model, fewest=fewest)
    return found.model, [f"{rule.name}: {rule.reason}" for rule in found.undone]


def onnxslim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim

    return onnxslim.slim(model)


def onnxsim(model: onnx.ModelProto) -> onnx.ModelProto:
    import onnxsim

    return onnxsim.simplify(model)[0]


def onnxruntime_basic(model: onnx.ModelProto) -> onnx.ModelProto:
    """What onnxruntime writes offline."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


CONVERTERS: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "onnxslim": onnxslim,
    "onnxsim": onnxsim,
    "onnxruntime": onnxruntime_basic,
}


def measure(name: str, folder: Path) -> Row:
    """Nodes, differences and seconds of one network."""
    from tailor_ir.conversion import count_nodes
    from tailor_ir.conversion.engine import examine

    file = folder / f"{name}.onnx"
    if not file.exists():
        exported(name, file)
    examination = examine(onnx.load(file), seed=1)
    row: Row = {"network": name, "original": count_nodes(onnx.load(file))}
    for who in COLUMNS:
        model = onnx.load(file)
        start = time.perf_counter()
        try:
            if who in OURS:
                found, undone = ours(model, fewest=who == "fewest")
                row["undone"] = row.get("undone", []) + undone
            else:
                found = CONVERTERS[who](model)
            seconds = time.perf_counter() - start
            row[who] = {
                "nodes": count_nodes(found),
                "seconds": round(seconds, 2),
                "difference": examination.difference(found),
            }
        except Exception as error:  # noqa: BLE001 - a peer that fails is told, and the others go on
            row[who] = {"error": (str(error).strip() or type(error).__name__).splitlines()[0][:200]}
    return row


def time_results(names: Sequence[str], folder: Path) -> None:
    """Print a row of median latencies for each network: the original, the result, and that of fewest nodes."""
    print("| network | original, ms | convert, ms | fewest=true, ms |\n|---|---|---|---|")
    for name in names:
        file = folder / f"{name}.onnx"
        if not file.exists():
            exported(name, file)
        model = onnx.load(file)
        latencies_ms = _latencies_ms([model, ours(model, fewest=False)[0], ours(model, fewest=True)[0]])
        print(f"| {name} | {' | '.join(f'{each:.1f}' for each in latencies_ms)} |", flush=True)


def _latencies_ms(models: Sequence[onnx.ModelProto]) -> list[float]:
    """Median latencies of models that take the same input."""
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
    inputs = {given.name: np.random.default_rng(0).standard_normal(given.shape).astype(np.float32)}
    times_ms: list[list[float]] = [[] for _ in sessions]
    for round_ in range(TIMED_ROUNDS + 1):
        for session, row in zip(sessions, times_ms, strict=True):
            start = time.perf_counter()
            session.run(None, inputs)
            if round_:  # the first one warms up
                row.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(row) for row in times_ms]


def _in_own_process(name: str, folder: Path, keep: bool) -> Row:
    command = [sys.executable, "-m", "benchmarks.conversion", "--one", name, "--work", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"network": name, "error": f"not ready after {LIMIT_S} s"}
    finally:
        if not keep:
            (folder / f"{name}.onnx").unlink(missing_ok=True)
    if done.returncode:
        return {"network": name, "error": (done.stderr.strip().splitlines() or ["killed"])[-1][:300]}
    return json.loads(done.stdout.splitlines()[-1])


def _best(row: Row) -> int:
    """The fewest nodes that a peer leaves with equal outputs."""
    return min(row[peer]["nodes"] for peer in PEERS if row[peer].get("difference", 1.0) <= TOLERANCE)


def bars(rows: Sequence[Row]) -> list[tuple[str, str, str]]:
    """Bar, limit, measured."""
    good = [row for row in rows if "error" not in row and "error" not in row["ours"]]
    worst = max((row[who]["difference"] for row in good for who in OURS), default=0.0)
    totals = {who: sum(row[who].get("nodes", row["original"]) for row in good) for who in COLUMNS}
    return [
        ("converted", "all", f"{len(good)} of {len(rows)}"),
        *(bar for who in OURS for bar in _against_peers(good, who)),
        ("largest difference", f"<= {TOLERANCE:g}", f"{worst:.1e}"),
        ("nodes of all networks together", "", ", ".join(f"{who} {nodes}" for who, nodes in totals.items())),
    ]


def _against_peers(rows: Sequence[Row], who: str) -> list[tuple[str, str, str]]:
    more = [row["network"] for row in rows if row[who]["nodes"] > _best(row)]
    fewer = sum(row[who]["nodes"] < _best(row) for row in rows)
    return [
        (f"{who}: more nodes than the best peer", f"<= {MORE_NODES}", f"{len(more)} ({', '.join(more) or 'none'})"),
        (f"{who}: fewer nodes than the best peer", "", f"{fewer} of {len(rows)}"),
    ]


def _cells(row: Row) -> list[str]:
    """Cells of HEADS; for a network that failed, the reason in the last one."""
    if "error" in row:
        return [row["network"], *[""] * (len(HEADS) - 2), row["error"]]
    worst = {who: row[who].get("difference", 0.0) for who in COLUMNS}
    peers = max(worst[who] for who in PEERS)
    return [
        row["network"],
        str(row["original"]),
        *(str(row[who].get("nodes", "fails")) for who in COLUMNS),
        f"{max(worst[who] for who in OURS):.1e}",
        f"{peers:.1e}" if peers else "0",
        *(f"{row[who]['seconds']:.1f}" if "seconds" in row[who] else "–" for who in ("ours", *PEERS)),
        "; ".join(row.get("undone", ())) or "–",
    ]


HEADS = (
    "network",
    "original",
    *COLUMNS,
    "difference, ours",
    "difference, peers",
    *(f"{who}, s" for who in ("ours", *PEERS)),
    "undone",
)


def _show(rows: Sequence[Row]) -> None:
    table = Table(*HEADS)
    for row in rows:
        table.add_row(*_cells(row))
    summary = Table("bar", "limit", "measured")
    for bar in bars(rows):
        summary.add_row(*bar)
    Console(width=200).print(table, summary)


def _markdown(rows: Sequence[Row]) -> None:
    """The tables of benchmarks/README.md."""
    print("| bar | limit | measured |\n|---|---|---|")
    for bar in bars(rows):
        print(f"| {' | '.join(bar)} |")
    print(f"\n| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
    for row in rows:
        print(f"| {' | '.join(_cells(row))} |")


def _work(names: Sequence[str], folder: Path, keep: bool) -> list[Row]:
    """A row for each network; those that the folder has are not worked again."""
    rows = []
    for name in track(names, "networks"):
        file = folder / f"{name}.json"
        if not file.exists():
            row = _in_own_process(name, folder, keep)
            file.write_text(json.dumps(row) + "\n")
        rows.append(json.loads(file.read_text()))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="keeps what was measured; a second run goes on from there"
    )
    parser.add_argument("--keep", action="store_true", help="keep the exported files in DIR, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="print the tables of the README")
    parser.add_argument("--time", action="store_true", help="latencies of the networks in the place of their nodes")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    missing = [name for name in PEERS if find_spec(name) is None]
    if missing and not arguments.time:
        parser.error(f"not installed: {', '.join(missing)}; pip install --no-deps {' '.join(missing)}")
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.work)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.work or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.time:
            time_results(arguments.networks or NETWORKS.read_text().split(), folder)
            return
        rows = _work(arguments.networks or NETWORKS.read_text().split(), folder, arguments.keep)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    (_markdown if arguments.markdown else _show)(rows)


if __name__ == "__main__":
    main()
