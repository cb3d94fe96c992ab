"""Whether SubNets of a SuperNet are worth having, and which strategy of fine-tuning makes the best ones.

    python -m benchmarks.worth alone [--subnets 10] [COMMON]
    python -m benchmarks.worth strategies [--minutes 1] [COMMON]
    COMMON: [--model resnet26] [--data digits | --data glyphs --images 6000] [--resolution 32] [--base-epochs 8] [--epochs 8]
            [--work DIR] [--json FILE]

Both train a base network, make it a SuperNet with the proposed space, and fine-tune that, through the product's own stages.

alone: of 200 random SubNets, the largest and the smallest, those on the front of MACs and validation accuracy (and on the
next fronts where that one is short), `--subnets` of them evenly by MACs. Each is then trained alone, from random weights, for
as many epochs as base network and SuperNet together, by the same loop with the same settings; test accuracies of both, with
BatchNorm recalibrated in the same way.

strategies: every strategy fine-tunes the same SuperNet for about `--minutes` on one process (the number of whole epochs follows
from the time of an epoch's steps; `seconds` are those that the steps took); the largest, the smallest, and the mean of 100
random SubNets by test accuracy.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import distributed

import tailor_ir
from benchmarks.bars import Terminal
from tasks.base.artifacts import read_json, read_lines, write_json
from tasks.data import DataSettings, load_splits
from tasks.evaluation.models import ModelSettings
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies, count_correct, recalibrate_module
from tasks.training import base_network as base
from tasks.training import compile as compilation
from tasks.training import finetune
from tasks.training.finetune.job import Job
from tasks.training.finetune.loop import Trainer
from tasks.training.finetune.networks import TrainableNetwork

RANDOM_SUBNETS = 200
JUDGED = 100
STRATEGIES: dict[str, dict[str, Any]] = {
    "sandwich": {"strategy": "sandwich", "random_subnets": 1},
    "compound": {"strategy": "compound", "random_subnets": 2},
    "alphanet": {"strategy": "sandwich", "random_subnets": 2, "divergence": "alpha"},
    "progressive": {"strategy": "progressive", "random_subnets": 2, "teacher": "base"},
    "random": {"strategy": "random", "random_subnets": 2},
}
WARM_UP = 6


class Work:
    """A SuperNet and its data, in a folder to go on from."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        self.data = DataSettings.model_validate(
            {"kind": options.data, "resolution": options.resolution, "images": options.images}
        )
        self.model = ModelSettings(name=options.model)
        self.splits = load_splits(self.data)
        self.supernet = self._once("compiled", self._compile) / "supernet"

    def _once(self, name: str, make: Any) -> Path:
        """A folder that `make` fills, unless it has."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "result.json").exists():
            write_json(folder / "result.json", make(folder))
        return folder

    def _compile(self, folder: Path) -> dict[str, Any]:
        settings = base.Settings(epochs=self.options.base_epochs, processes=1)
        found = base.run(settings, self.model, self.data, folder, Terminal())
        weights = folder / base.WEIGHTS_FILE
        compiled = compilation.run(compilation.Settings(), self.model, self.data, weights, None, folder, Terminal())
        return {**found, **compiled}

    def finetuned(self, name: str, settings: finetune.Settings) -> tuple[Any, np.ndarray]:
        """The SuperNet, fine-tuned, and how long each step took [s]."""
        folder = self._once(name, lambda out: finetune.run(settings, self.data, self.supernet, out, Terminal()))
        rates = [line["images_per_s"] for line in read_lines(folder / "history.jsonl")]
        return tailor_ir.load(folder / "supernet"), settings.batch_size / np.array(rates)

    def images(self, split: str) -> EvaluationData:
        return EvaluationData(self.splits[split], self.splits["train"])  # type: ignore[index]

    def accuracies(self, net: Any, configs: list[Any], split: str, file: str) -> list[Accuracy]:
        return accuracies(net, configs, self.images(split), self.folder / file, Terminal())


def different(net: Any, count: int) -> list[Any]:
    """The largest, the smallest and random SubNets, all different."""
    rng = np.random.default_rng(0)
    found = {net.space.digest(config): config for config in (net.max_config, net.min_config)}
    while len(found) < count + 2:
        config = net.space.sample(rng)
        found.setdefault(net.space.digest(config), config)
    return list(found.values())


def macs_of(net: Any, config: Any) -> int:
    return sum(feature.macs for feature in net.operators(config))


def across_front(net: Any, configs: list[Any], found: list[Accuracy], count: int) -> list[int]:
    """Positions of SubNets that none with fewer MACs equals in accuracy, evenly by the logarithm of MACs.

    Where these are fewer than `count`, those without them, and so on.
    """
    macs = np.array([macs_of(net, config) for config in configs])
    left = [int(position) for position in np.argsort(macs, kind="stable")]
    front: list[int] = []
    while len(front) < min(count, len(configs)):
        best, taken = -1.0, []
        for position in left:
            if found[position].correct > best:
                best = found[position].correct
                taken.append(position)
        front += taken
        left = [position for position in left if position not in taken]
    front.sort(key=lambda position: macs[position])
    wanted = np.geomspace(macs[front[0]], macs[front[-1]], count)
    chosen = {min(front, key=lambda position: abs(np.log(macs[position] / goal))) for goal in wanted}
    rest = sorted(set(front) - chosen, key=lambda position: -found[position].correct)
    return sorted([*chosen, *rest[: count - len(chosen)]], key=lambda position: macs[position])


def trained_alone(work: Work, net: Any, config: Any, folder: Path) -> float:
    """Test accuracy of the architecture, trained from random weights."""
    settings = base.Settings(epochs=work.options.base_epochs + work.options.epochs, processes=1)
    train = work.splits["train"]
    steps = train.steps(settings.batch_size)
    job = Job(folder=folder, data=work.data, train=settings, steps_per_epoch=steps, total_steps=steps * settings.epochs)
    module = net.build(config)
    torch.manual_seed(0)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    size = net.input_shape(config)[-2:]
    Trainer(job, TrainableNetwork(module, size, settings), train, torch.device("cpu")).run()
    images = work.images("test")
    recalibrate_module(module, images.calibration(size))
    return count_correct(module, images.batches(size)).share


def alone(work: Work) -> list[dict[str, Any]]:
    """A row for each SubNet across the front."""
    options = work.options
    settings = finetune.Settings(epochs=options.epochs, processes=1)
    net, _ = work.finetuned("finetuned", settings)
    configs = different(net, RANDOM_SUBNETS)
    validation = work.accuracies(net, configs, "validation", "validation.jsonl")
    chosen = [configs[position] for position in across_front(net, configs, validation, options.subnets)]
    test = work.accuracies(net, chosen, "test", "test.jsonl")
    file = work.folder / "alone.json"
    known: dict[str, float] = read_json(file) if file.exists() else {}
    rows = []
    for config, own in zip(chosen, test, strict=True):
        digest = net.space.digest(config)
        if digest not in known:
            folder = work.folder / "alone" / digest
            folder.mkdir(parents=True, exist_ok=True)
            known[digest] = trained_alone(work, net, config, folder)
            write_json(file, known)
        row = {"macs": macs_of(net, config), "resolution": net.input_shape(config)[-1], "supernet": own.share}
        rows.append(row | {"alone": known[digest], "test_images": own.total})
        Console().print(rows[-1])
    return rows


def strategies(work: Work) -> list[dict[str, Any]]:
    """A row for each strategy."""
    options = work.options
    steps = work.splits["train"].steps(finetune.Settings().batch_size)
    rows = []
    for name, changes in STRATEGIES.items():
        common = {"processes": 1, **changes}
        _, tried_s = work.finetuned(f"tried {name}", finetune.Settings.model_validate(common | {"epochs": 1}))
        epochs = max(1, round(60 * options.minutes / (steps * float(np.median(tried_s[WARM_UP:])))))
        settings = finetune.Settings.model_validate(common | {"epochs": epochs})
        net, taken_s = work.finetuned(f"finetuned {name}", settings)
        found = work.accuracies(net, different(net, JUDGED), "test", f"{name}.jsonl")
        largest, smallest, *others = (one.share for one in found)
        row = {"strategy": name, "epochs": epochs, "seconds": float(taken_s.sum())}
        row |= {"largest": largest, "smallest": smallest}
        rows.append(row | {"mean": float(np.mean(others)), "worst": min(others), "test_images": found[0].total})
        Console().print(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("alone", "strategies"))
    parser.add_argument("--subnets", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--model", default="resnet26")
    parser.add_argument("--data", choices=("digits", "glyphs"), default="digits")
    parser.add_argument("--images", type=int, default=6000, help="of glyphs, for all splits")
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--base-epochs", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--work", type=Path, metavar="DIR", help="what was trained; a folder to go on from")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        store = distributed.FileStore(f"{temporary}/ranks", 1)
        os.environ["LOCAL_RANK"] = "0"
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        work = Work(options, options.work or Path(temporary))
        rows = alone(work) if options.what == "alone" else strategies(work)
        distributed.destroy_process_group()
    table = Table(*rows[0])
    for row in rows:
        table.add_row(
            *(
                f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
                for value in row.values()
            )
        )
    Console(width=160).print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
