"""What a deployed model takes in memory over many requests: whether a budget is kept, and whether anything leaks.

    python -m benchmarks.served_memory [--format onnx|ncnn] [--network mobilenetv2_100] [--requests 100000]
        [--leak-requests 1000000] [--budget 1.3] [--json FILE]

The bundles are those of `benchmarks.switching`: eight SubNets with random weights, in onnxruntime or ncnn, one thread, one
image a request. *Within a budget*: a random one of the eight takes over every 50 requests, under a multiple of what the
largest one alone takes. *All warm*: the same without a budget, which shows a leak of some bytes a request better, since
nothing is loaded. Resident memory of a process of its own, read after each 50 requests, and every 5 ms for the peak. *Drift*:
mean of the last tenth of the readings over that of the first, after the first 5 %; 2 % are allowed.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import adaptive_runtime
from adaptive_runtime.bundle.bundles import BundleFormat
from benchmarks.switching import BUDGET, SIZES, Peak, alone, memory, write

EVERY = 50
WARMING_UP, PART = 0.05, 0.1
MOST_DRIFT = 0.02


def served(folder: Path, requests: int, budget_mib: float | None, form: BundleFormat) -> dict[str, Any]:
    """Requests to SubNets in random order; memory [MiB] and the number of switches."""
    x, rng = np.load(folder / "x.npy"), np.random.default_rng(0)
    used_mib = np.zeros(requests // EVERY)
    with adaptive_runtime.load(folder / "bundle", memory_mib=budget_mib, format=form) as model, Peak(model) as peak:
        digests = [one.digest for one in model.subnets]
        if budget_mib is None:
            for digest in digests:
                model.use(digest)
        for at in track(range(len(used_mib)), "requests"):
            digest = digests[rng.integers(len(digests))]
            model.use(digest)
            for _ in range(EVERY):
                assert model.infer(x).subnet == digest
            used_mib[at] = model.pool.used_mib
        state = model.state
    kept = used_mib[int(WARMING_UP * len(used_mib)) :]
    tenth = max(1, int(PART * len(kept)))
    first, last = kept[:tenth].mean(), kept[-tenth:].mean()
    return {
        "budget_mib": budget_mib,
        "requests": state.requests,
        "switches": state.switches,
        "first_mib": float(first),
        "last_mib": float(last),
        "drift": float(last / first - 1),
        "peak_mib": peak.most_mib,
        "above_budget": float((used_mib > budget_mib).mean()) if budget_mib else 0.0,
        "taken_out": len(state.taken_out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=("onnx", "ncnn"), default="onnx")
    parser.add_argument("--network", choices=list(SIZES), default="mobilenetv2_100")
    parser.add_argument("--requests", type=int, default=100_000, help="within the budget")
    parser.add_argument("--leak-requests", type=int, default=1_000_000, help="with all SubNets warm")
    parser.add_argument("--budget", type=float, default=BUDGET, help="times what the largest SubNet takes alone")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone(write, options.network, SIZES[options.network], folder, ncnn=options.format == "ncnn")
        largest_mib = alone(memory, folder, (1,), prepares=True, form=options.format)["1 warm"]
        rows = {
            "within a budget": alone(served, folder, options.requests, options.budget * largest_mib, options.format),
            "all warm": alone(served, folder, options.leak_requests, None, options.format),
        }
    table = Table("", "requests", "switches", "budget [MiB]", "peak [MiB]", "first, last [MiB]", "drift", "holds")
    for title, row in rows.items():
        holds = abs(row["drift"]) <= MOST_DRIFT and (row["budget_mib"] or np.inf) >= row["peak_mib"]
        table.add_row(
            title,
            f"{row['requests']:,}",
            f"{row['switches']:,}",
            "" if row["budget_mib"] is None else f"{row['budget_mib']:.1f}",
            f"{row['peak_mib']:.1f}",
            f"{row['first_mib']:.1f}, {row['last_mib']:.1f}",
            f"{row['drift']:+.2%}",
            "yes" if holds and not row["taken_out"] else "NO",
        )
    Console(width=160).print(table)
    if options.json:
        facts = {"network": options.network, "format": options.format, "largest_mib": largest_mib}
        options.json.write_text(json.dumps({**facts, **rows}, indent=1))


if __name__ == "__main__":
    main()
