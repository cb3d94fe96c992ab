"""Loss curves of fine-tuning with one process and with two, at the same global batch.

    python benchmarks/ddp.py [--precision float64|float32] [--epochs 1] [--json FILE]

BatchNorm takes its statistics from micro-batches of fixed size, which do not depend on the number of processes, and
gradients are averaged over all of them. In float64 the curves agree to rounding; in float32 rounding itself grows
from step to step, whatever the number of processes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

SHARED = [
    "model.name=test_resnet",
    "data.augment=false",
    "base.epochs=1",
    "finetune.batch_size=64",
    "finetune.micro_batch=32",
]


def curve(output: Path, processes: int, precision: str, epochs: int) -> list[float]:
    """Loss of every step."""
    overrides = [*SHARED, f"finetune.processes={processes}", f"finetune.precision={precision}"]
    overrides += [f"finetune.epochs={epochs}", f"output_dir={output}"]
    result = output.with_suffix(f".{processes}.json")
    command = [sys.executable, "-m", "flows.cli", "finetune", "--json", str(result)]
    subprocess.run([*command, *overrides], check=True, stdout=subprocess.DEVNULL)
    stages = json.loads(result.read_text())["stages"]
    folder = Path(next(row["folder"] for row in stages if row["stage"] == "finetune"))
    return [json.loads(line)["loss"] for line in (folder / "history.jsonl").read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", choices=("float64", "float32"), default="float64")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one, two = (
            curve(Path(folder) / "outputs", processes, arguments.precision, arguments.epochs) for processes in (1, 2)
        )
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
