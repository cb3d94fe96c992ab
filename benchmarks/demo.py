"""The whole pipeline on embedded defaults, into a fresh folder, held against what it has to show.

    python benchmarks/demo.py [--output DIR] [--json FILE] [OVERRIDE…]

Bars: at most 6 minutes; the largest SubNet at most 1 point below the base network; on each device at least 8 points on the
measured front over at least 5 points of accuracy, above the uniformly shrunk SubNets at every budget; at least 11 of 12
winners within their budget when a script of its own times the exported files again; every exported file within 1e-4 of torch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from profiling_agents.client import ModelJob, local_agent
from profiling_agents.messages import Engine, Format, MeasureSettings
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.jobs import ncnn_job, onnx_job

Row = tuple[str, str, str, bool]
SUFFIXES = {"onnx": (".onnx",), "ncnn": (".ncnn.param", ".ncnn.bin")}
ROUNDS = 7
TIMING = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)


def rows_of(report: dict[str, Any], wall_s: float, again_ms: dict[str, dict[str, float]]) -> list[Row]:
    """Bar, limit, measured, whether it holds. again_ms: latencies of exported files by device and digest."""
    base = report["accuracies"]["base model, test"]
    largest, smallest = (report["accuracies"][f"{end} SubNet, test"] for end in ("largest", "smallest"))
    rows: list[Row] = [
        ("wall time", "<= 360 s", f"{wall_s:.0f} s", wall_s <= 360),
        ("base network, test accuracy", "", f"{base:.2%}", True),
        ("smallest SubNet, test accuracy", "", f"{smallest:.2%}", True),
        ("largest SubNet, points below base", "<= 1", f"{100 * (base - largest):.2f}", base - largest <= 0.01 + 1e-9),
    ]
    for device in report["devices"]:
        found = _device_rows(device, again_ms[device["name"]])
        rows += [(f"{device['name']}: {name}", limit, measured, holds) for name, limit, measured, holds in found]
    return rows


def _device_rows(device: dict[str, Any], again_ms: dict[str, float]) -> Iterator[Row]:
    winners = device["winners"]
    front = {row["digest"]: row["accuracy"] for row in winners if row["on_front"]}
    points = 100 * (max(front.values()) - min(front.values()))
    yield "points on the measured front", ">= 8", str(len(front)), len(front) >= 8
    yield "its range of test accuracy", ">= 5 points", f"{points:.1f}", points >= 5
    above = [_above_baseline(row, device["baseline"]) for row in winners]
    yield "not below uniformly shrunk SubNets", "all budgets", f"{sum(above)} of {len(above)}", all(above)
    kept = [again_ms[row["digest"]] <= row["budget_ms"] for row in winners]
    yield (
        "winners within their budget, timed again",
        ">= 11 of 12",
        f"{sum(kept)} of {len(kept)}",
        12 * sum(kept) >= 11 * len(kept),
    )
    told = sum(row["within_budget"] is True for row in winners)
    yield "the same, as the report says", "", f"{told} of {len(winners)}", True
    share = min(again_ms.values()) / device["base"]["measured_ms"]
    yield "fastest, share of the base's latency", "<= 0.5", f"{share:.3f}", share <= 0.5
    worst = max((row["max_difference"] for row in winners), default=float("inf"))
    files_ok = all(row["reason"] is None and row["files"] for row in winners)
    yield "exported files, largest difference", "<= 1e-4", f"{worst:.1e}", files_ok and worst <= 1e-4
    errors = device["latency_validation"]
    held_out = f"{errors['median_relative_error']:.1%} median, {errors['max_relative_error']:.1%} largest"
    yield "latency predictor, held out", "", held_out, True


def _above_baseline(winner: dict[str, Any], baseline: list[dict[str, Any]]) -> bool:
    """Whether no uniformly shrunk SubNet within the winner's budget is more accurate on the test images."""
    known = [row for row in baseline if row["measured_ms"] is not None and row["accuracy"] is not None]
    within = [row["accuracy"] for row in known if row["measured_ms"] <= winner["budget_ms"]]
    return winner["accuracy"] is not None and winner["accuracy"] >= max(within, default=0.0)


def timed_again(device: dict[str, Any], output: Path) -> dict[str, float]:
    """p50 [ms] of each winner's exported file by digest: the median of some rounds, in each of which all take turns."""
    name, backend = device["name"], device["runtime"]["backend"]
    form: Format = "ncnn" if backend == "ncnn" else "onnx"
    jobs = [_job(digest, form, output / "exports" / name) for digest in {row["digest"] for row in device["winners"]}]
    found: dict[str, list[float]] = {job.key: [] for job in jobs}
    with local_agent(backend=backend) as plain:
        client = plain.with_engine(Engine(choices=device["engine"]["chosen"])) if device["engine"] else plain
        with client.lease():
            for _ in range(ROUNDS):
                for one in client.measure(jobs, TIMING):
                    assert one.p50_ms is not None, one.reason
                    found[one.key].append(one.p50_ms)
    return {digest: float(np.median(times_ms)) for digest, times_ms in found.items()}


def _job(digest: str, form: Format, folder: Path) -> ModelJob:
    """The files of one SubNet, as they were exported."""
    model = next(folder.glob(f"*{digest[:8]}*.onnx"))  # one of several where it is the winner of several budgets
    files = tuple(next(folder.glob(f"*{digest[:8]}*{suffix}")).read_bytes() for suffix in SUFFIXES[form])
    if form == "onnx":
        return onnx_job(digest, files[0])
    return ncnn_job(digest, model.read_bytes(), NcnnFiles(*files))


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
        again_ms = {device["name"]: timed_again(device, output) for device in report["devices"]}
    rows = rows_of(report, wall_s, again_ms)
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
