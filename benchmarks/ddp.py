"""Loss curves of fine-tuning with one process and with two, at the same global batch.

    python benchmarks/ddp.py [--precision float64|float32] [--epochs 1] [--model test_resnet] [--json FILE]
    python benchmarks/ddp.py --speed [--epochs 1] [--model resnet26] [--json FILE] [OVERRIDE…]

BatchNorm takes its statistics from micro-batches of fixed size, which do not depend on the number of processes, and
gradients are averaged over all of them. In float64 the curves agree to rounding; in float32 rounding itself grows
from step to step, whatever the number of processes. --speed: images/s of two processes, each on a core of its own, over
those of one process on one core, in the order 1, 2, 2, 1; the median over the steps but the first few.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

SHARED = ["data.augment=false", "base.epochs=1", "finetune.batch_size=64", "finetune.micro_batch=32"]
SKIPPED = 3


def history(output: Path, overrides: list[str], cores: set[int] | None = None) -> list[dict[str, float]]:
    """What fine-tuning said of every step."""
    result = output.with_suffix(".json")
    command = [sys.executable, "-m", "flows.cli", "finetune", "--json", str(result), f"output_dir={output}"]
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or allowed)  # children inherit it
    try:
        subprocess.run([*command, *SHARED, *overrides], check=True, stdout=subprocess.DEVNULL)
    finally:
        os.sched_setaffinity(0, allowed)
    stages = json.loads(result.read_text())["stages"]
    folder = Path(next(row["folder"] for row in stages if row["stage"] == "finetune"))
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def curve(output: Path, processes: int, precision: str, shared: list[str]) -> list[float]:
    """Loss of every step."""
    overrides = [f"finetune.processes={processes}", f"finetune.precision={precision}", *shared]
    return [line["loss"] for line in history(output, overrides)]


def speed(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Images/s with one process and with two."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    found: dict[int, list[float]] = {1: [], 2: []}
    for number, processes in enumerate((1, 2, 2, 1)):
        own = [f"finetune.processes={processes}", f"finetune.seed={number}", *overrides]
        lines = history(folder / "outputs", own, set(cores[:processes]))
        found[processes] += [line["images_per_s"] for line in lines[SKIPPED:]]
    rates = {processes: statistics.median(rates) for processes, rates in found.items()}
    return {"images_per_s": rates, "ratio": rates[2] / rates[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("float64", "float32"), default="float64")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--speed", action="store_true", help="images/s instead of losses")
    parser.add_argument("--model", help="a network of timm (test_resnet; with --speed resnet26)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    arguments = parser.parse_args()
    model = arguments.model or ("resnet26" if arguments.speed else "test_resnet")
    shared = [f"model.name={model}", f"finetune.epochs={arguments.epochs}", *arguments.overrides]
    if arguments.speed:
        with tempfile.TemporaryDirectory() as folder:
            found = {"model": model, **speed(Path(folder), shared)}
        Console().print(found)
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        one, two = (curve(Path(folder) / "outputs", processes, arguments.precision, shared) for processes in (1, 2))
    differences = [abs(a - b) / a for a, b in zip(one, two, strict=True)]
    result = {
        "precision": arguments.precision,
        "steps": len(one),
        "first_loss": one[0],
        "last_loss": one[-1],
        "largest_relative_difference": max(differences),
    }
    Console().print(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result | {"one_process": one, "two_processes": two}, indent=1) + "\n")


if __name__ == "__main__":
    main()
