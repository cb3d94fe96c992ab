"""Trained networks as people have them: which .onnx files compile, and whether the largest SubNet is the file's network.

    python -m benchmarks.real_files FOLDER [--json FILE] [--markdown]

FOLDER holds .onnx files, and wheels or source archives of packages that hold some (`pip download --no-deps -d FOLDER
rapidocr-onnxruntime silero-vad …`; none of them belongs to this project, and licences differ). Each file is compiled with
inputs that onnxruntime takes: open sizes are tried in turn, and single numbers are a rate of 16 kHz. Difference: the largest
one of an output of the largest SubNet to the file in onnxruntime, both for one sample, relative to the largest number of that
output; for quantised files it is what rounding changes. SubNets: the smallest one, elastic, built and exported, for one sample.
"""

import argparse
import json
import logging
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import helper
from rich.console import Console
from rich.table import Table

import tailor_ir

FREE_SIZES = (64, 576, 200, 48, 320, 224, 16_000, 144_160)
"""Sizes that are tried for open dimensions."""
RATE = 16_000
COLUMNS = ("network", "compiles", "s", "variables", "SubNets", "trained", "largest vs original", "SubNets' forms")

Row = dict[str, Any]
Example = dict[str, np.ndarray]


def files_in(folder: Path, work: Path) -> Iterator[tuple[str, Path]]:
    """Names and paths of all .onnx files of a folder and of its archives, which are unpacked into `work`."""
    yield from ((path.stem, path) for path in sorted(folder.rglob("*.onnx")))
    for archive in sorted(path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz"))):
        target = work / archive.name
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(target, [name for name in packed.namelist() if name.endswith((".onnx", ".data"))])
        else:
            with tarfile.open(archive) as source:
                members = [each for each in source.getmembers() if each.name.endswith((".onnx", ".data"))]
                source.extractall(target, members, filter="data")
        yield from ((f"{archive.name.split('-')[0]}: {path.stem}", path) for path in sorted(target.rglob("*.onnx")))


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def examples_of(model: onnx.ModelProto) -> Iterator[Example]:
    """One sample of each input, for each size that open dimensions may have."""
    stored = {tensor.name for tensor in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in stored]
    first = next((one.type.tensor_type.shape.dim[0] for one in inputs if one.type.tensor_type.shape.dim), None)
    batch = "" if first is None else first.dim_param
    for free in FREE_SIZES:
        rng = np.random.default_rng(0)
        example = {}
        for one in inputs:
            kind = np.dtype(helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type))
            shape = []
            for axis, size in enumerate(one.type.tensor_type.shape.dim):
                same = axis == 0 or (size.dim_param == batch and (batch or one is not inputs[0]))
                shape.append(size.dim_value if size.dim_value > 0 else 1 if same else free)
            whole = np.full(shape, RATE if not shape else 0)
            example[one.name] = (rng.standard_normal(shape) if kind.kind == "f" else whole).astype(kind)
        yield example


def answered(model: onnx.ModelProto) -> tuple[Example, list[np.ndarray]]:
    """The first example that onnxruntime takes, and its answer."""
    session, reason = session_of(model.SerializeToString()), ""
    for example in examples_of(model):
        try:
            return example, session.run(None, example)
        except Exception as error:  # noqa: BLE001 - the runtime raises many types
            reason = reason or str(error).splitlines()[0]
    raise RuntimeError(f"onnxruntime takes none of the examples: {reason}")


def difference(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> float:
    """The largest difference, relative to the largest number of its output; shapes may differ by axes of one."""
    found = [0.0]
    for a, b in zip(one, other, strict=True):
        if a.size != b.size:
            return float("inf")
        largest = float(np.abs(a.astype(np.float64)).max(initial=0.0)) or 1.0
        found.append(
            float(np.abs(a.astype(np.float64).ravel() - b.astype(np.float64).ravel()).max(initial=0.0)) / largest
        )
    return max(found)


def forms(net: tailor_ir.SuperNet, work: Path) -> float:
    """How far the built and the exported smallest SubNet are from the elastic one."""
    config = net.min_config
    given = net.sample_inputs(config, np.random.default_rng(1), batch=1)
    net.elastic.activate(config)
    elastic = outputs(net.elastic, given)
    net.export(config, work / "subnet.onnx")
    session = session_of((work / "subnet.onnx").read_bytes())
    exported = session.run(None, dict(zip([one.name for one in session.get_inputs()], given, strict=True)))
    return max(difference(elastic, outputs(net.build(config), given)), difference(elastic, exported))


def outputs(network: torch.nn.Module, given: Sequence[np.ndarray]) -> list[np.ndarray]:
    with torch.no_grad():
        found = network(*map(torch.from_numpy, given))
    return [one.detach().numpy() for one in (found if isinstance(found, tuple) else (found,))]


def measure(name: str, path: Path, work: Path) -> Row:
    """One row of the table."""
    row: Row = {"network": name, "compiles": "yes"}
    try:
        example, expected = answered(onnx.load(path))
        start = time.perf_counter()
        net = tailor_ir.compile(path, {key: torch.from_numpy(array) for key, array in example.items()})
        row |= {"s": round(time.perf_counter() - start, 1), "variables": len(net.space.variables)}
        row |= {"SubNets": f"{net.space.distinct:.3g}", "remarks": list(net.remarks)}
        row["trained"] = sum(one.numel() for one in net.elastic.parameters())
        net.elastic.eval()
        given = [example[key] for key in net.structure.graph.inputs]
        row["largest vs original"] = f"{difference(expected, outputs(net.elastic, given)):.1e}"
        row["SubNets' forms"] = f"{forms(net, work):.1e}"
    except tailor_ir.TailorError as error:
        row["compiles"] = str(error)
    except Exception as error:  # noqa: BLE001 - a table of what happens has to have all rows
        row["compiles"] = f"FAULT {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return row


def print_markdown(rows: Sequence[Row]) -> None:
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for row in rows:
        print(f"| {' | '.join(str(row.get(column, '')) for column in COLUMNS)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    console, rows = Console(stderr=True), []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, path in files_in(arguments.folder, work):
            rows.append(measure(name, path, work))
            console.print(name, rows[-1]["compiles"], highlight=False)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if arguments.markdown:
        print_markdown(rows)
    else:
        table = Table(*COLUMNS)
        for row in rows:
            table.add_row(*(str(row.get(column, "")) for column in COLUMNS))
        Console().print(table)
    compiled = sum(row["compiles"] == "yes" for row in rows)
    print(f"{compiled} of {len(rows)} files compile")


if __name__ == "__main__":
    main()
