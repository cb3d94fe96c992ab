"""AdaptiveNet's and AdaScale's rows again: their search spaces, storage, cost of training and fronts, beside what they publish.

    python -m benchmarks.published_spaces [OVERRIDE …] --work DIR [--stages space train measure] [--presets PRESET …]
        [--json FILE] [--markdown]

*space*: the four presets of published spaces at their resolution and with as many classes as their papers (ImageNet's 1,000;
CIFAR-10's 10), random weights, nothing trained. SubNets and the ranges of multiply-accumulates (MACs) and weights are exact.
Storage: all parameters of the SuperNet over those of the original; its folder over the original's tensors; a device has
to hold the first in storage, and in memory the weights of the SubNet that runs (BatchNorm folded).
*train*: ResNet18 with AdaScale's space and MobileNetV2 with AdaptiveNet's learn ten characters of glyphs (64 pixels) and become
SuperNets, `autotailor finetune` on one process: the original, then branches, then tune, which leave it as it is. Seconds of a
phase are its steps times the median step; those of compiling, wall time. "From scratch": each SubNet of the front trained as
long as the original, by MACs.
*measure*: `autotailor run` from there, exact search, candidates measured in onnxruntime on one thread.

OVERRIDEs go to both commands. DIR keeps everything: stages can be run at different times, and what is known is shown.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from re import sub
from statistics import median
from typing import Any

import numpy as np
import torch

import tailor_ir
from benchmarks.elastic import compiled
from benchmarks.published_tables import (
    DIFFERENCES,
    POINTS,
    SHARES,
    Row,
    published_rows,
    show_costs,
    show_fronts,
    show_ranges,
    show_spaces,
)
from benchmarks.tables import show
from benchmarks.trained import train
from tailor_ir import SuperNet
from tasks.base.artifacts import RESULT_FILE, read_json, read_lines, write_json
from tasks.base.schemas.results import HISTORY_FILE, RANGE_ACCURACIES_FILE, RANGES_FILE, WatchedSubNets
from tasks.prediction.sums import Sums, mac_sums, parameter_sums
from tasks.search.problem import chain_of_tables

STAGES = ("space", "train", "measure")
CLASSES = {"adascale": 10, "adaptivenet_mobilenetv2": 1000, "adaptivenet_resnet50": 1000, "adaptivenet_resnet101": 1000}
COMMON = (
    "data=glyphs",
    "data.images=6000",
    "data.classes=10",
    "data.resolution=64",
    "data.workers=1",
    "base.processes=1",
    "finetune.processes=1",
    "finetune.epochs=6",
    "finetune.learning_rate=0.002",
    "finetune.ranges.images=500",
    "finetune.ranges.every_epochs=3",
)
TRAINED: dict[str, tuple[str, ...]] = {
    "adascale": ("base.epochs=6", "base.learning_rate=0.002"),
    "adaptivenet_mobilenetv2": (
        "base.epochs=12",
        "base.batch_size=32",
        "base.optimiser=sgd",
        "base.learning_rate=0.1",
        "base.weight_decay=0",
    ),
}
MEASURED = ("device=onnxruntime", "search=exact", "export.formats=[onnx]")


def space_row(preset: str) -> Row:
    """Counts, storage and times of one preset; nothing is trained."""
    start = time.perf_counter()
    net = compiled(preset, CLASSES[preset])
    compile_s = time.perf_counter() - start
    start = time.perf_counter()
    operators = len(net.unique_operators())
    enumerate_s = time.perf_counter() - start
    graph = net.structure.graph
    original = graph.original()
    with tempfile.TemporaryDirectory() as folder:
        net.save(folder)
        saved = sum(file.stat().st_size for file in Path(folder).iterdir())
    return {
        "preset": preset,
        "classes": CLASSES[preset],
        "input": list(net.input_shape(net.max_config)),
        "subnets": net.space.distinct,
        "variants": dict(Counter(sub(r"_[\d.]+$", "", each.choice) for each in graph.alternatives)),
        "operators": operators,
        "compile_s": compile_s,
        "enumerate_s": enumerate_s,
        "macs": (least(net, mac_sums(net)), net.macs(net.max_config), most(net, mac_sums(net))),
        "original_bytes": _bytes(net, original.parameters),
        "supernet_bytes": _bytes(net, graph.parameters),
        "original_saved_bytes": _bytes(net, original.initializers),
        "saved_bytes": saved,
        "weights_bytes": (4 * least(net, parameter_sums(net)), 4 * most(net, parameter_sums(net))),
    }


def _bytes(net: SuperNet, names: Iterable[str]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in map(net.elastic.tensor, names))


def least(net: SuperNet, sums: Sums) -> int:
    """The least sum that any SubNet has, exactly."""
    return -_largest(net, sums, -1.0)


def most(net: SuperNet, sums: Sums) -> int:
    """The largest sum that any SubNet has, exactly."""
    return _largest(net, sums, 1.0)


def _largest(net: SuperNet, sums: Sums, factor: float) -> int:
    gain = [table.scaled(factor) for table in sums.tables]
    chain = chain_of_tables(net.space.cardinalities.tolist(), gain, (), net.space.derived)
    code, value, _ = chain.best(np.zeros(0))
    assert round(factor * value) == round(float(sums.predict(code[None])[0]))
    return round(value)


def phases(history: Sequence[Row], batch_size: int) -> dict[str, Row]:
    """Steps, epochs and seconds of each phase of a training by its history: steps times the median step.

    The lines of branch-wise distillation have the loss of that role alone.
    """
    found: dict[str, list[Row]] = {}
    for line in history:
        found.setdefault("branches" if "loss_branches" in line else "steps", []).append(line)
    rows = {}
    for name, lines in found.items():
        step_s = batch_size / median(line["images_per_s"] for line in lines)
        epochs = len({line["epoch"] for line in lines})
        rows[name] = {"steps": len(lines), "epochs": epochs, "step_s": step_s, "seconds": len(lines) * step_s}
    return rows


def costs(preset: str, work: Path, overrides: Sequence[str]) -> Row:
    """Train, or find what was trained: seconds of each phase, accuracies of the original and of SubNets by ranges of MACs."""
    trained = train(words(preset, overrides), work / preset)
    folder = trained.supernet.parent
    base = _latest(work / preset, "base")
    told = read_json(base / RESULT_FILE)
    batch_size = {"base": _job(base)["train"]["batch_size"], "finetune": _job(folder)["finetune"]["batch_size"]}
    own = phases(read_lines(folder / HISTORY_FILE), batch_size["finetune"])
    return {
        "preset": preset,
        "base": phases(read_lines(base / HISTORY_FILE), batch_size["base"])["steps"] | {"wall_s": told["seconds"]},
        "first_weights_s": read_json(_latest(work / preset, "compile") / RESULT_FILE)["seconds"],
        "branches": own["branches"],
        "tune": own["steps"],
        "wall_s": trained.result["seconds"],
        "images": own["steps"]["steps"] // own["steps"]["epochs"] * batch_size["finetune"],
        "accuracy": told["test_accuracy"],
        "largest_accuracy": trained.result["largest_test_accuracy"],
        "macs": tailor_ir.load(trained.supernet).macs({}),
        "ranges": _ranges(folder),
    }


def words(preset: str, overrides: Sequence[str]) -> list[str]:
    """Of the command line, for training."""
    return [f"+preset={preset}", *COMMON, *TRAINED[preset], *overrides]


def _latest(output: Path, stage: str) -> Path:
    """The folder of a stage that was finished last."""
    return max(output.glob(f"stages/{stage}/*/{RESULT_FILE}"), key=lambda file: file.stat().st_mtime).parent


def _job(folder: Path) -> Any:
    return read_json(folder / "job.json")


def _ranges(folder: Path) -> list[Row]:
    """Mean accuracy of the watched SubNets by range of MACs, after each evaluation."""
    watched = WatchedSubNets.read(folder / RANGES_FILE)
    lines = read_lines(folder / RANGE_ACCURACIES_FILE)
    rows = []
    for number in sorted({one.range for one in watched.subnets}):
        at = [position for position, one in enumerate(watched.subnets) if one.range == number]
        shares = [float(np.mean([line["correct"][position] for position in at]) / line["total"]) for line in lines]
        low, high = (bound / 1e6 for bound in watched.bounds_macs[number : number + 2])
        rows.append({"label": f"{low:.3g} to {high:.3g} M MACs", "subnets": len(at), "accuracies": shares})
    return rows


def fastest_within(points: float, original: Row, subnets: Sequence[Row]) -> Row | None:
    """The fastest SubNet that loses at most so many points of the original's test accuracy."""
    kept = [one for one in subnets if 100 * (original["accuracy"] - one["accuracy"]) <= points + 1e-9]
    return min(kept, key=lambda one: one["measured_ms"], default=None)


def best_within(share: float, original: Row, subnets: Sequence[Row]) -> Row | None:
    """The most accurate SubNet within a share of the original's latency."""
    kept = [one for one in subnets if one["measured_ms"] <= share * original["measured_ms"]]
    return max(kept, key=lambda one: one["accuracy"], default=None)


def front_of(preset: str, work: Path, overrides: Sequence[str]) -> Row:
    """The measured front of the exact search, from the report of the whole pipeline."""
    told = work / preset / "report.json"
    command = [sys.executable, "-m", "flows.cli", "run", f"output_dir={(work / preset).resolve()}"]
    subprocess.run([*command, *words(preset, ()), *MEASURED, *overrides, "--json", str(told)], check=True)
    report = read_json(told)
    (device,) = report["devices"]
    return summary(preset, report, device)


def summary(preset: str, report: Mapping[str, Any], device: Mapping[str, Any]) -> Row:
    """What of a report is compared. Accuracies of the test split; latencies as measured beside the original."""
    fields = ("digest", "measured_ms", "accuracy", "macs", "parameters", "budget_ms", "within_budget", "config")
    known = {one["digest"]: one for one in device["winners"] if one["on_front"]}
    front = sorted(({field: one[field] for field in fields} for one in known.values()), key=lambda r: r["measured_ms"])
    original = {field: device["base"][field] for field in ("measured_ms", "accuracy", "macs", "parameters")}
    whole, ranges = device["whole_front"], report["ranges"]
    return {
        "preset": preset,
        "original": original,
        "front": front,
        "predicted_points": None if whole is None else len(whole["predicted_ms"]),
        "within": {str(points): fastest_within(points, original, front) for points in POINTS},
        "at": {str(share): best_within(share, original, front) for share in SHARES},
        "ranges": [] if ranges is None else ranges["by_latency"][device["name"]],
        "stages_s": stage_seconds(report["stages"]),
    }


def stage_seconds(stages: Sequence[Row]) -> dict[str, float]:
    """Seconds of each stage, on all devices."""
    found: Counter[str] = Counter()
    for row in stages:
        found[row["stage"].partition("/")[0]] += row["seconds"]
    return dict(found)


def _known(work: Path, name: str, presets: Iterable[str]) -> dict[str, Row]:
    """Rows that a stage has left, by preset."""
    files = {preset: work / f"{name}-{preset}.json" for preset in presets}
    return {preset: read_json(file) for preset, file in files.items() if file.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of the training, such as finetune.epochs=8")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="a second run goes on from there")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES))
    parser.add_argument("--presets", nargs="+", choices=CLASSES, default=list(CLASSES))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    for preset in options.presets:
        if "space" in options.stages:
            write_json(options.work / f"space-{preset}.json", space_row(preset))
        if "train" in options.stages and preset in TRAINED:
            write_json(options.work / f"train-{preset}.json", costs(preset, options.work, options.overrides))
        if "measure" in options.stages and preset in TRAINED:
            write_json(options.work / f"measure-{preset}.json", front_of(preset, options.work, options.overrides))
    spaces, trained, fronts = (_known(options.work, stage, options.presets) for stage in STAGES)
    if spaces:
        show_spaces(list(spaces.values()), options.markdown)
    if trained:
        show_costs(list(trained.values()), fronts, options.markdown)
    for preset, cost in trained.items():
        show_ranges(cost, fronts.get(preset), options.markdown)
    if fronts:
        show_fronts(fronts.values(), options.markdown)
    show(("paper", "figure", "published", "here"), published_rows(trained, fronts), markdown=options.markdown)
    print("\n".join(f"- {line}" for line in DIFFERENCES))
    if options.json:
        told = {"space": list(spaces.values()), "train": list(trained.values()), "measure": list(fronts.values())}
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
