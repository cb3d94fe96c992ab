"""Latencies predicted and measured: the error on SubNets that no fit has seen, and what profiling costs.

    python -m benchmarks.latency [--devices ncnn …] [--method "in situ"|alone] [--subnets 200] [--fit 16] [--rounds 3]
                                 [--work DIR] [--json FILE] [--markdown] [NETWORK …]

NETWORK: a preset, or a network of timm with the space that is proposed for it. For each network and device, on one thread:
every unique operator is measured, then the largest, the smallest and random SubNets; the correction is fitted on these two
and the first `--fit` random ones, and all others are held out. A latency is the median of `--rounds` p50 that lie minutes
apart, each as on a calm device (`tasks.measuring.jobs`), or of up to twice as many, until its standard error is within 1 %.
The store of tables is shared by the networks of a device, in the order given; "known" counts operators that an earlier
network has brought. Noise: the standard deviation of single p50 around their SubNet's mean, as measured. DIR keeps what was
measured; a second run goes on from there.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.bars import Terminal
from benchmarks.profiled import add_options, each_network, predict_settings, profiled
from benchmarks.supernets import SUPERNET_FOLDER
from benchmarks.tables import show
from profiling_agents.client import AgentClient
from tasks.base.artifacts import read_lines
from tasks.prediction import latency
from tasks.prediction.settings import Settings as PredictSettings

NETWORKS = ("mobilenetv2", "resnet50", "mobilenetv3", "deit_tiny_patch16_224")


def measure(
    name: str, device: str, client: AgentClient, method: str, predict: PredictSettings, work: Path
) -> dict[str, Any]:
    """One row."""
    own, cost = profiled(name, device, client, work, method)
    for measured in sorted(own.parent.glob(f"{device} */{latency.MEASURED_FILE}")):  # the same, whatever the method
        if not (own / measured.name).exists():
            shutil.copy(measured, own)
    result = latency.run(predict, own.parent / SUPERNET_FOLDER, own, client, own, Terminal())
    held_out, rows = result["held_out"], result["subnets"]
    sums = np.array([row["sum_ms"] / row["measured_ms"] for row in rows if row["used_for"] == "held out"])
    return {
        "network": name,
        "device": device,
        "method": method,
        "operators": cost["known"] + cost["measured_now"],
        "known": cost["known"],
        "minutes": cost["minutes"],
        "operators_per_s": cost["operators_per_s"],
        "fused": cost["lut"]["fused"],
        "n": held_out["n"],
        "median_error": held_out["median_relative_error"],
        "within_10_percent": held_out["within_10_percent"],
        "largest_error": held_out["max_relative_error"],
        "kendall_tau": held_out["kendall_tau"],
        "plain_sum": float(np.median(sums)) - 1,
        "spread_stated": result["correction"]["spread"],
        "fastest_ms": min(row["measured_ms"] for row in rows),
        "slowest_ms": max(row["measured_ms"] for row in rows),
        "noise": _noise(own / latency.MEASURED_FILE),
    }


def _noise(file: Path) -> float:
    """Relative standard deviation of single p50 around the mean of their SubNet."""
    times_ms: dict[str, list[float]] = {}
    for line in read_lines(file):
        times_ms.setdefault(line["key"], []).append(line["p50_ms"])
    return float(np.concatenate([np.array(found) / np.mean(found) - 1 for found in times_ms.values()]).std())


COLUMNS = {
    "network": "network",
    "device": "device",
    "method": "method",
    "operators": "operators",
    "known": "known",
    "minutes": "profiling, min",
    "operators_per_s": "operators / s",
    "n": "held out",
    "median_error": "median error",
    "within_10_percent": "within ±10 %",
    "kendall_tau": "Kendall's tau",
    "plain_sum": "plain sum, median",
    "spread_stated": "spread stated",
    "fastest_ms": "fastest, ms",
    "slowest_ms": "slowest, ms",
    "noise": "noise",
}


def _cell(name: str, value: Any) -> str:
    if name in ("median_error", "within_10_percent", "spread_stated", "noise"):
        return f"{value:.1%}"
    if name == "plain_sum":
        return f"{value:+.1%}"
    if name == "kendall_tau":
        return f"{value:.3f}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _show(rows: list[dict[str, Any]], markdown: bool) -> None:
    cells = [[_cell(name, row[name]) for name in COLUMNS] for row in rows]
    show(list(COLUMNS.values()), cells, markdown=markdown, width=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("in situ", "alone"), default="in situ")
    add_options(parser, NETWORKS, subnets=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    predict, rows = predict_settings(options), list[dict[str, Any]]()
    for name, device, client, work in each_network(options):
        rows.append(measure(name, device, client, options.method, predict, work))
        _show(rows[-1:], markdown=False)
    _show(rows, options.markdown)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
