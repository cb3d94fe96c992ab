"""Exits trained part after part, beside all at once and beside networks of their own: AdaScale's Table III in shape.

    python -m benchmarks.exit_stages [--networks resnet18 mobilenetv2] [--epochs 4] [--images 8000] [--work DIR] [--json FILE]
        [--markdown]

A slim ResNet-18 (32 to 256 channels) and MobileNetV2 (half width, output stride 8) with random weights and heads behind three
stages learn ten characters of glyphs at 32 pixels, on one process: *staged*, earlier parts frozen or improved, `--epochs` for
each of the four parts; *joint*, all exits by labels, and with self-distillation from the most accurate one, for as many epochs
as take the time of staged. *Alone*: the network up to an exit, with its head, from random weights, for the epochs that its
parts had together. Accuracies on test images, BatchNorm recalibrated.

Peak memory of a training: what five steps with 128 images each add to the memory [MiB] that a process had taken before them,
for each part with all parts before frozen, for all exits at once, and for the network without heads (end to end). Storage:
bytes of heads over those of the network. Latency: onnxruntime on one thread, best p50 of rounds. Energy: of the analytic model.
Bars: later stages take less than half of the memory of end-to-end training; two to four heads take at most 13.2 % of the
network's storage (published: 13.2 to 1.03 %).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import distributed

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.profiled import least_p50_ms
from benchmarks.tables import show
from tailor_ir import Config, ExitParts, SuperNet
from tasks.base.artifacts import read_json, read_lines, write_json
from tasks.data import DataSettings, load, load_splits
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.prediction.resources import EnergyPredictor, EnergySettings
from tasks.training import base_network as base
from tasks.training import compile as compilation
from tasks.training import finetune
from tasks.training.finetune.job import Job, TrainingPhase
from tasks.training.finetune.loop import Trainer
from tasks.training.finetune.networks import TrainableNetwork, open_network

NETWORKS = {
    "resnet18": ModelSettings(name="resnet18", options={"channels": [32, 64, 128, 256]}),
    "mobilenetv2": ModelSettings(name="mobilenetv2_050", options={"output_stride": 8}),
}
PLACES = {"resnet18": ("stage.1", "stage.2", "stage.3"), "mobilenetv2": ("stage.3", "stage.4", "stage.6")}
TRAINING: dict[str, dict[str, Any]] = {
    "resnet18": {"learning_rate": 0.002, "micro_batch": 64},
    "mobilenetv2": {
        "optimiser": "sgd",
        "learning_rate": 0.05,
        "weight_decay": 0.0,
        "batch_size": 32,
        "micro_batch": 32,
    },
}
COMMON: dict[str, Any] = {"processes": 1, "ranges": {"subnets": 0}}
WHOLE, TOGETHER = "whole", "together"
STEPS, PROBED = 5, 128
PASSES = {"batch_size": PROBED, "micro_batch": PROBED}
LESS, MOST_STORED = 0.5, 0.132
Row = dict[str, Any]


class Work:
    """A folder with everything that is made once, of one network."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name, self.epochs, self.folder = name, options.epochs, options.work / name
        self.data = DataSettings.model_validate(
            {"kind": "glyphs", "images": options.images, "classes": 10, "resolution": 32, "workers": 1}
            | {"validation_share": 0.2, "test_share": 0.2}
        )
        self.supernet = self.compiled(PLACES[name])
        self.net = tailor_ir.load(self.supernet)
        self.exits = finetune.exits_of(self.net.space)

    def compiled(self, places: Sequence[str]) -> Path:
        """The network with random weights and heads at places."""

        def make(folder: Path) -> Mapping[str, Any]:
            settings = compilation.Settings(exit_images=0)
            space = {"exits": tuple(places)}
            return compilation.run(settings, NETWORKS[self.name], self.data, None, space, folder, Terminal())

        return self.once(f"compiled {'-'.join(places)}", make) / "supernet"

    def once(self, name: str, make: Callable[[Path], Mapping[str, Any]]) -> Path:
        """A folder that `make` fills, unless it has."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "result.json").exists():
            write_json(folder / "result.json", make(folder))
        return folder

    def trained(self, name: str, supernet: Path, **changes: Any) -> Row:
        """One training: the `folder` of the SuperNet, and `seconds` of its steps by part."""
        settings = finetune.Settings.model_validate(COMMON | TRAINING[self.name] | changes)
        folder = self.once(name, lambda own: finetune.run(settings, self.data, supernet, own, Terminal()))
        seconds: dict[str, list[float]] = {}
        for line in read_lines(folder / "history.jsonl"):
            exits = sorted(key for key in line if key.startswith("loss_exit_"))
            seconds.setdefault(exits[-1] if len(exits) == 1 else TOGETHER, []).append(
                settings.batch_size / line["images_per_s"]
            )
        spent = {key.removeprefix("loss_exit_"): len(own) * median(own) for key, own in seconds.items()}
        return {"folder": folder / "supernet", "seconds": spent, "total_s": sum(spent.values())}

    def judged(self, name: str, supernet: Path, exits: Sequence[str]) -> list[float]:
        """Test accuracies of exits."""
        splits = load_splits(self.data)
        images = EvaluationData(splits["test"], splits["train"])
        configs: list[Config] = [{"exit": exit_} for exit_ in exits]
        found = accuracies(tailor_ir.load(supernet), configs, images, self.folder / f"{name}.jsonl", Terminal())
        return [one.share for one in found]


def trainings(work: Work) -> list[Row]:
    """Accuracies of all exits and seconds, by training."""
    parts = len(work.exits)
    plans: dict[str, dict[str, Any]] = {
        f"staged, {earlier}": {"strategy": "staged", "exits": {"earlier": earlier, "patience": None}}
        for earlier in ("freeze", "improve")
    }
    rows = []
    for name, plan in plans.items():
        found = work.trained(name, work.supernet, epochs=parts * work.epochs, **plan)
        rows.append({"training": name, **found, "accuracies": work.judged(name, found["folder"], work.exits)})
    tried = work.trained("joint, tried", work.supernet, epochs=1, strategy="joint", distillation=0)
    epochs = max(1, round(rows[0]["total_s"] / tried["total_s"]))
    for name, share in (("joint", 0.0), ("joint, self-distilled", 0.5)):
        found = work.trained(name, work.supernet, epochs=epochs, strategy="joint", distillation=share)
        rows.append({"training": name, **found, "accuracies": work.judged(name, found["folder"], work.exits)})
    return [*rows, alone(work)]


def alone(work: Work) -> Row:
    """Each exit's network by itself: the first part of a network with this exit only; the last is the network without heads."""
    shares, seconds = [], {}
    for position, exit_ in enumerate(work.exits[:-1]):
        own, epochs = work.compiled([exit_]), (position + 1) * work.epochs
        plan = {"strategy": "staged", "exits": {"patience": None, "shares": [epochs, 1]}}
        found = work.trained(f"alone {exit_}", own, epochs=epochs + 1, **plan)
        shares += work.judged(f"alone {exit_}", found["folder"], [exit_])
        seconds[exit_] = found["seconds"][exit_]

    epochs = len(work.exits) * work.epochs

    def make(folder: Path) -> Mapping[str, Any]:
        settings = base.Settings.model_validate({"epochs": epochs, "processes": 1, **TRAINING[work.name]})
        return base.run(settings, NETWORKS[work.name], work.data, folder, Terminal())

    folder = work.once("alone last", make)
    rates = [line["images_per_s"] for line in read_lines(folder / "history.jsonl")]
    batch_size = read_json(folder / "job.json")["train"]["batch_size"]
    seconds[work.exits[-1]] = float(len(rates) * batch_size / np.median(rates))
    shares.append(read_json(folder / "result.json")["test_accuracy"])
    return {"training": "alone", "seconds": seconds, "total_s": sum(seconds.values()), "accuracies": shares}


def peaks_mib(work: Work) -> dict[str, float]:
    """Memory that training takes, by part; each in a process of its own."""
    known = work.folder / "peaks.json"
    if not known.exists():
        found = {}
        for what in (*map(str, range(len(work.exits))), TOGETHER, WHOLE):
            command = [sys.executable, "-m", "benchmarks.exit_stages", "--probe", work.name, str(work.supernet), what]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found[what] = float(told.splitlines()[-1])
        write_json(known, found)
    peaks: dict[str, float] = read_json(known)
    return peaks


def probe(name: str, supernet: Path, what: str) -> float:
    """What a few training steps add to the most memory of this process [MiB]."""
    torch.set_num_threads(1)
    net = tailor_ir.load(supernet)
    data = DataSettings.model_validate(
        {"kind": "glyphs", "images": 1500, "classes": 10, "resolution": 32, "workers": 1}
    )
    settings = finetune.Settings.model_validate(
        COMMON | PASSES | {"strategy": "joint" if what == TOGETHER else "staged"}
    )
    exits = finetune.exits_of(net.space)
    os.environ |= {"LOCAL_RANK": "0"}
    with tempfile.TemporaryDirectory() as folder:
        store = distributed.FileStore(str(Path(folder) / "ranks"), 1)
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        common: dict[str, Any] = {"folder": Path(folder), "data": data, "total_steps": STEPS, "steps_per_epoch": STEPS}
        job = Job(**common, finetune=settings, supernet=supernet, exits=exits)
        dataset = load(data, "train")
        if what == WHOLE:
            train = base.Settings.model_validate({"processes": 1, **PASSES})
            job = Job(**common, train=train)
            phase = TrainingPhase(None, 0, STEPS)
            network: Any = TrainableNetwork(net.build(net.max_config), (data.resolution, data.resolution), train)
        else:
            together = what == TOGETHER
            phase = TrainingPhase("joint" if together else "staged", 0, STEPS, part=None if together else int(what))
            network = open_network(job, phase, dataset)
        trainer = Trainer(job, network, dataset, torch.device("cpu"), phase=phase)
        batches = [batch for batch, _ in zip(dataset.batches(settings.batch_size, seed=0), range(STEPS), strict=False)]
        Path("/proc/self/clear_refs").write_text("5")  # the most resident memory is counted anew
        before_mib = status_mib("VmRSS")
        for x_BCHW, y_B in batches:
            trainer.train_step(x_BCHW, y_B)
        added_mib = status_mib("VmHWM") - before_mib
        distributed.destroy_process_group()
    return added_mib


def status_mib(field: str) -> float:
    """A line of this process's status, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def costs(work: Work) -> list[Row]:
    """Latency, energy, weights and heads of each exit."""
    net = work.net
    configs: list[Config] = [{"exit": exit_} for exit_ in work.exits]
    by_digest = {net.space.digest(config): config for config in configs}
    known = least_p50_ms(net, by_digest, work.folder / "latencies.json")
    energy = EnergyPredictor.compile(net, EnergySettings()).model(net.space.encode(configs))
    parts = ExitParts(net.elastic, net.max_config).parts
    heads = [stored(net, part.head_parameters) for part in parts]
    whole = stored(net, net.structure.graph.original().parameters)
    return [
        {"exit": exit_, "ms": known[net.space.digest(config)], "mj": float(mj), "head": head / whole}
        for exit_, config, mj, head in zip(work.exits, configs, energy, heads, strict=True)
    ]


def stored(net: SuperNet, names: Sequence[str]) -> int:
    """Bytes of tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in map(net.elastic.tensor, names))


def show_network(name: str, found: Row, *, markdown: bool) -> None:
    """A row for each exit, and what bars say."""
    rows, peaks = found["trainings"], found["peaks_mib"]
    heads = ("exit", "ms", "energy, mJ", "head / network", "memory of its stage, MiB", "seconds of its stage")
    names = [row["training"] for row in rows]
    staged = rows[0]["seconds"]
    cells = [
        (
            cost["exit"],
            f"{cost['ms']:.3f}",
            f"{cost['mj']:.3f}",
            f"{cost['head']:.2%}",
            f"{peaks[str(at)]:.0f}",
            f"{staged[cost['exit']]:.0f}",
            *(f"{row['accuracies'][at]:.1%}" for row in rows),
        )
        for at, cost in enumerate(found["costs"])
    ]
    print(f"\n{name}: test accuracy of each exit by training")
    show((*heads, *names), cells, markdown=markdown, width=190)
    totals = ", ".join(f"{row['training']} {row['total_s']:.0f} s" for row in rows)
    later = max(peaks[str(at)] for at in range(1, len(found["costs"])))
    share, kept = later / peaks[WHOLE], sum(cost["head"] for cost in found["costs"])
    print(f"training: {totals}")
    print(
        f"memory: all exits at once {peaks[TOGETHER]:.0f} MiB, the network without heads {peaks[WHOLE]:.0f} MiB; most of a "
        f"later stage {share:.2f} of the latter ({'holds' if share < LESS else 'does NOT hold'}, < {LESS})"
    )
    print(
        f"storage of all heads: {kept:.2%} ({'holds' if kept <= MOST_STORED else 'does NOT hold'}, <= {MOST_STORED:.1%})"
    )


def main() -> None:
    if sys.argv[1:2] == ["--probe"]:
        print(probe(sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=tuple(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--epochs", type=int, default=4, help="of each part")
    parser.add_argument("--images", type=int, default=8000, help="of all splits")
    parser.add_argument("--work", type=Path, metavar="DIR", help="what was trained; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the README")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        options.work = options.work or Path(temporary)
        for name in options.networks:
            work = Work(name, options)
            results[name] = {"peaks_mib": peaks_mib(work), "trainings": trainings(work), "costs": costs(work)}
            show_network(name, results[name], markdown=options.markdown)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
