"""Is the measured front above every baseline? The whole product on a trained SuperNet and two devices.

    python -m benchmarks.fronts --work DIR [--budgets 40] [--candidates 12] [--ratios 0.35 0.6 0.8] [--json FILE] [OVERRIDE …]

A slim ResNet-26t learns 100 classes of glyphs and becomes a SuperNet. `autotailor run` then searches each budget of each device
exactly, measures candidates, and holds the winners against every baseline of `baselines=all`, smaller networks of its family
trained for as many epochs, and the base network pruned layer by layer with Torch-Pruning and fine-tuned for as many epochs as
the SuperNet (`benchmarks.pruned`; `pip install torch-pruning`, or --ratios without any). OVERRIDEs go to every command.

Bars: above every baseline at 92 % of the budgets (the share that AutoTailor's paper states), winners within their budget by
measurement at 95 %. Of each side a budget takes the network with the best validation accuracy; test accuracies are compared.
DIR keeps everything; a second run goes on from there.
"""

import argparse
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.pruned import RATIOS, pruned_files
from benchmarks.ranking import COMMON, NETWORKS
from benchmarks.trained import train
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.report.baselines import SHOWN, cells, title

ABOVE, WITHIN = 0.92, 0.95
SLIM = "channels: [32, 64, 128, 256], stem_width: 16"
THIN = "channels: [16, 32, 64, 128], stem_width: 16"
SIBLINGS = ", ".join(
    f"{{name: {name}, options: {{{channels}}}}}"
    for name, channels in (("resnet14t", SLIM), ("resnet10t", SLIM), ("resnet10t", THIN))
)
NETWORK = (
    *COMMON,
    *NETWORKS["resnet"],
    "model.name=resnet26t",
    f"model.options={{{SLIM}}}",
    "data.classes=100",
    "data.images=32000",
    "data.validation_share=0.15",
    "data.test_share=0.25",
    "base.epochs=12",
    "finetune.epochs=16",
)
SETTINGS = (
    "device=[onnxruntime,ncnn]",
    "search=exact",
    "refine.margin=0.03",
    "predict.rounds=2",
    "predict.interactions=24",
    "predict.measure.time_cap_ms=80",
    "export.formats=[onnx]",
    "baselines=all",
    "baselines.random=80",
    f"baselines.siblings=[{SIBLINGS}]",
)


def overrides_of(options: argparse.Namespace) -> list[str]:
    """For training."""
    return [*NETWORK, *options.overrides]


def run(options: argparse.Namespace, files: list[Path]) -> dict[str, Any]:
    """The report of the whole pipeline."""
    words = [*NETWORK, *SETTINGS, f"search.budget_count={options.budgets}"]
    words += [f"refine.candidates={options.candidates}", f"output_dir={options.work.resolve()}"]
    if files:
        words.append(f"baselines.files={{torch-pruning: [{', '.join(str(file.resolve()) for file in files)}]}}")
    told = options.work / "fronts.json"
    subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", *words, *options.overrides, "--json", str(told)], check=True
    )
    report: dict[str, Any] = json.loads(told.read_text())
    return report


def rows_of(report: dict[str, Any]) -> list[dict[str, Any]]:
    """What each device shows, without the single networks."""
    left_out = ("rows", "winners", "budgets")
    rows = []
    for device in report["devices"]:
        found = device["baselines"]
        row = {name: value for name, value in found.items() if name not in left_out}
        row["budgets"] = len(found["budgets"])
        row["different_winners"] = len({one["digest"] for one in found["winners"]})
        row["over_by"] = max(one["measured_ms"] / one["budget_ms"] - 1 for one in found["winners"])
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """Bars, and a row for each baseline of each device."""
    console = Console(width=130)
    bars = Table("device", "bar", "limit", "measured", "holds")
    for row in rows:
        chosen, again = row["within_budget_when_chosen"], row["within_budget"]
        for name, limit, value in (
            (f"above every baseline, of {row['budgets']} budgets", ABOVE, row["above_every"]),
            ("not below any baseline", None, row["not_below_any"]),
            ("winners within their budget, when chosen", WITHIN, chosen),
            (f"the same winners timed again (at most {row['over_by']:+.1%})", None, again),
        ):
            text = "–" if value is None else f"{value:.1%}"
            holds = "" if limit is None or value is None else "yes" if value >= limit else "NO"
            bars.add_row(row["device"], name, "" if limit is None else f">= {limit:.0%}", text, holds)
    console.print(bars)
    table = Table("device", "baseline", *SHOWN.values())
    for row in rows:
        for name, one in row["baselines"].items():
            shown = cells(one)
            table.add_row(row["device"], title(name), *(shown[key] for key in SHOWN))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="a second run goes on from there")
    parser.add_argument("--budgets", type=int, default=40, help="of each device")
    parser.add_argument("--candidates", type=int, default=12, help="SubNets that are measured for each budget")
    parser.add_argument("--ratios", type=float, nargs="*", default=RATIOS, help="of channels that Torch-Pruning prunes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.ratios and find_spec("torch_pruning") is None:
        parser.error("Torch-Pruning is not installed: pip install torch-pruning, or --ratios without any")
    options.work.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    train(overrides_of(options), options.work)
    if options.ratios:
        config = validate(RunConfig, compose_config("config", overrides_of(options)))
        weights = max(options.work.glob("stages/base/*/weights.safetensors"), key=lambda file: file.stat().st_mtime)
        files = pruned_files(config, weights, options.work, options.ratios)
    rows = rows_of(run(options, files))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
