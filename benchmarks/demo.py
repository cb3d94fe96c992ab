"""The whole pipeline on embedded defaults, into a fresh folder, held against what it has to show.

    python benchmarks/demo.py [--output DIR] [--json FILE] [OVERRIDE…]

Bars: at most 6 minutes; base network at least 97 % on the test set, the largest SubNet within 1 point of it; on each
device a front of at least 8 points whose fastest runs in at most half of the base's measured latency at most 3 points
below its accuracy; every exported file within 1e-4 of torch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Row = tuple[str, str, str, bool]


def rows_of(report: dict[str, Any], wall_s: float) -> list[Row]:
    """Bar, limit, measured, whether it holds."""
    base = report["accuracies"]["base model, test"]
    largest = report["accuracies"]["largest SubNet, test"]
    rows: list[Row] = [
        ("wall time", "<= 360 s", f"{wall_s:.0f} s", wall_s <= 360),
        ("base network, test accuracy", ">= 97 %", f"{base:.2%}", base >= 0.97),
        ("largest SubNet, points below base", "<= 1", f"{100 * (base - largest):.2f}", base - largest <= 0.01 + 1e-9),
    ]
    for device in report["devices"]:
        rows += _device_rows(device, base)
    return rows


def _device_rows(device: dict[str, Any], base: float) -> list[Row]:
    name, winners = device["name"], device["winners"]
    points = {row["digest"] for row in winners}
    fastest = min((row for row in winners if row["measured_ms"]), key=lambda row: row["measured_ms"])
    share = fastest["measured_ms"] / device["base"]["measured_ms"]
    loss = 100 * (base - fastest["accuracy"])
    worst = max((row["max_difference"] for row in winners), default=float("inf"))
    files_ok = all(row["reason"] is None and row["files"] for row in winners)
    errors = device["latency_validation"]
    within = [row["within_budget"] for row in winners]
    measured = sum(row["on_front"] for row in winners)
    held_out = f"{errors['median_relative_error']:.1%} median, {errors['max_relative_error']:.1%} largest"
    return [
        (f"{name}: points of the predicted front", ">= 8", str(len(points)), len(points) >= 8),
        (f"{name}: of these on the front as measured", "", str(measured), True),
        (f"{name}: fastest, share of the base's latency", "<= 0.5", f"{share:.3f}", share <= 0.5),
        (f"{name}: fastest, points below the base", "<= 3", f"{loss:.2f}", loss <= 3 + 1e-9),
        (f"{name}: exported files, largest difference", "<= 1e-4", f"{worst:.1e}", files_ok and worst <= 1e-4),
        (f"{name}: winners within their budget as measured", "", f"{sum(within)} of {len(within)}", True),
        (f"{name}: latency predictor, held out", "", held_out, True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        output = arguments.output or Path(folder) / "outputs"
        result = Path(folder) / "report.json"
        command = [sys.executable, "-m", "flows.cli", "run", f"output_dir={output}", "--json", str(result)]
        started = time.monotonic()
        subprocess.run([*command, *arguments.overrides], check=True)
        wall_s = time.monotonic() - started
        report = json.loads(result.read_text())
    rows = rows_of(report, wall_s)
    table = Table("bar", "limit", "measured", "holds")
    for name, limit, measured, holds in rows:
        table.add_row(name, limit, measured, "yes" if holds else "NO")
    Console(width=110).print(table)
    stages = ", ".join(f"{row['stage']} {row['seconds']:.0f} s" for row in report["stages"])
    Console(width=110).print(f"stages: {stages}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "stages": report["stages"]}, indent=1) + "\n")
    sys.exit(0 if all(row[3] for row in rows) else 1)


if __name__ == "__main__":
    main()
