"""`autotailor-runtime check`: the answers of this device beside those of torch in the bundle."""

import argparse
import json
from pathlib import Path

from adaptive_runtime.deployed import check, load

HELP = "Compare the answers of this device with the calibration sample of a bundle."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("bundle", type=Path, help="folder with bundle.json")
    parser.add_argument(
        "--format", choices=("onnx", "ncnn"), help="files that are run; default: those of the bundle's device"
    )
    parser.add_argument("--key-file", type=Path, help="secret with which the bundle must be signed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the differences there")


def run(arguments: argparse.Namespace) -> None:
    """Print the difference of every SubNet and exit. AdaptiveError: one of them differs by more than the bundle allows."""
    with load(arguments.bundle, format=arguments.format, key_file=arguments.key_file, prepares=False) as model:
        found = check(model)
        allowed = model.pool.bundle.manifest.runs[model.pool.form].tolerance
    rows = [{"subnet": one.digest, "exit": one.exit, "difference": value} for one, value in found.items()]
    for row in rows:
        place = "" if row["exit"] is None else f" at {row['exit']}"
        print(f"{row['subnet']}{place}: {row['difference']:.2g} (allowed {allowed:g})")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"allowed": allowed, "differences": rows}), encoding="utf-8")
