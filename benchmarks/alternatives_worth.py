"""Are alternatives worth having beside sizes? Measured fronts of both, of sizes and of alternatives, at equal training time.

    python -m benchmarks.alternatives_worth --work DIR [--stage trials|train|measure|all] [--minutes 6] [--budgets 16]
        [--candidates 6] [--shares 2 1 1] [--phases sandwich branches tune] [--json FILE] [--markdown] [OVERRIDE …]

A slim ResNet-26 learns ten characters of glyphs (32 pixels), once. Three spaces start from it: *sizes* (resolution, widths,
depths, expansions; sandwich rule), *alternatives* (merged, pruned, low rank, separable; branches, then tune, half of the time
each) and *both* (--phases, by --shares of the time). *trials*: an epoch of each strategy in each space, on a machine
that does nothing else; whole epochs follow so that the median steps of each space add up to --minutes. *train*: on one
process, with these numbers, so that the machine may be shared meanwhile. *measure*, on a quiet machine: `autotailor run` with
tuned engines, --budgets budgets of each device searched exactly over the complete space, --candidates measured for each.
DIR keeps everything; each stage, and a second run, goes on from there. OVERRIDEs go to every command.

Then the winners of all spaces on a device are timed anew, in rounds in which the spaces take turns (median). A front has
the winners that some latency takes by validation accuracy; test accuracies are compared (`tasks.search.baselines.stage`).
Hypervolumes of all spaces on a device have one corner: the latency of the slowest and the test accuracy of the worst SubNet on
any of the three fronts. Bar: that of both >= 1.05 × the better one of the others.

Which alternative wins where: in the trained space of alternatives each block alone is replaced by each of its alternatives,
timed in the same rounds, and tested. *Best trade* of a block: what saves most latency and loses at most 0.5 points of test
accuracy; else `original`. A kind *beats* another on a block if each alternative of the other meets a faster one of it that
loses no more.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.equal_time import Plan, whole_epochs
from benchmarks.int8 import COMMON as GLYPHS
from benchmarks.int8 import NETWORKS
from benchmarks.replacements import KINDS, Single, best_trades, duels, occurrences, show_replacements
from benchmarks.space_fronts import ALTERNATIVES, BOTH, SIZES, Row, fronts_of, points_of, ratio_to_better, show_fronts
from benchmarks.trained import Trained, train
from profiling_agents.client import local_agent
from profiling_agents.messages import Engine, MeasureSettings
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import read_json, read_lines, write_json
from tasks.base.schemas.placed import IMPLEMENTATIONS_FILE, ChosenImplementations
from tasks.data import load_splits
from tasks.evaluation.conversion import DEFAULT_LIMITS
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.measuring.subnets import SubNetMeter
from tasks.training.finetune.settings import Settings as FinetuneSettings

DEVICES = ("ncnn", "onnxruntime")
WARM_UP = 5
"""Steps of a trial that are not timed."""
ROUNDS = 5
TIMING = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=150.0)
OF_SIZES = tuple(word for word in GLYPHS if word.startswith("space."))
OF_ALTERNATIVES = (f"space.alternatives=[{','.join(KINDS)}]",)
SPACES = {SIZES: OF_SIZES, ALTERNATIVES: OF_ALTERNATIVES, BOTH: (*OF_SIZES, *OF_ALTERNATIVES)}
COMMON = (
    *(word for word in GLYPHS if not word.startswith("space.")),
    *(word for word in NETWORKS["resnet26"] if not word.startswith(("base.epochs", "finetune.epochs"))),
    "base.epochs=12",
    "finetune.ranges.subnets=0",
)
MEASURED = (
    f"device=[{','.join(DEVICES)}]",
    "search=exact",
    "predict.interactions=24",
    "export.formats=[onnx]",
    "export.replacements=0",
)


class Work:
    """A folder with everything that is made once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.folder = options, options.work
        self._known: dict[tuple[str, ...], Any] = {}
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def phases(self) -> dict[str, tuple[tuple[str, ...], tuple[float, ...]]]:
        """Strategies of each space, and their shares of the time."""
        return {
            SIZES: (("sandwich",), (1.0,)),
            ALTERNATIVES: (("branches", "tune"), (1.0, 1.0)),
            BOTH: (tuple(self.options.phases), tuple(self.options.shares)),
        }

    def overrides(self, space: str, more: Sequence[str]) -> list[str]:
        """Of every command for a space, without the output folder. Those that the user gave come last."""
        return [*COMMON, *SPACES[space], *more, *self.options.overrides]

    def trials(self) -> dict[str, dict[str, float]]:
        """Seconds of an epoch by space and strategy; what a file knows is not tried again."""
        file = self.folder / "trials.json"
        known: dict[str, dict[str, float]] = read_json(file) if file.exists() else {}
        for space, (strategies, _) in self.phases.items():
            for strategy in strategies:
                if strategy not in known.get(space, {}):
                    found = self._trained(space, Plan((strategy,), (1,), 0.0))
                    steps_s = self._steps_s(found)
                    known.setdefault(space, {})[strategy] = len(steps_s) * float(np.median(steps_s[WARM_UP:]))
                    write_json(file, known)
        return known

    def plans(self) -> dict[str, Plan]:
        """How each space is trained, by the trials."""
        trials, found = self.trials(), {}
        for space, (strategies, shares) in self.phases.items():
            epoch_s = [trials[space][strategy] for strategy in strategies]
            epochs = whole_epochs(60 * self.options.minutes, shares, epoch_s)
            total_s = sum(number * one_s for number, one_s in zip(epochs, epoch_s, strict=True))
            found[space] = Plan(strategies, epochs, total_s)
        return found

    def trained(self, space: str) -> Trained:
        """The SuperNet of a space."""
        return self._trained(space, self.plans()[space])

    def train_row(self, space: str) -> Row:
        """Epochs and seconds of a training: by the trials, and as its steps took."""
        plan, found = self.plans()[space], self.trained(space)
        return {
            "space": space,
            "strategies": list(plan.strategies),
            "epochs": list(plan.epochs),
            "seconds": plan.seconds,
            "taken_s": float(self._steps_s(found).sum()),
            **found.result,
        }

    def _trained(self, space: str, plan: Plan) -> Trained:
        words = self.overrides(space, plan.overrides)
        found: Trained = self._once(("finetune", *words), lambda: train(words, self._output))
        return found

    def _once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """What a command told, in this process; a command that is given again takes long to find out that nothing is to do."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    @property
    def _output(self) -> Path:
        """One for all spaces, so that the base network is trained once."""
        return self.folder / "outputs"

    def _steps_s(self, trained: Trained) -> Any:
        rates = [line["images_per_s"] for line in read_lines(trained.supernet.parent / "history.jsonl")]
        return FinetuneSettings().batch_size / np.array(rates)

    def report(self, space: str) -> Row:
        """Of the whole pipeline."""
        return self._told("run", space)

    def implementations(self, space: str, device: str) -> ChosenImplementations:
        """Of operators on a device, as the profile stage has chosen them."""
        stages = self._told("profile", space)["stages"]
        folder = next(Path(stage["folder"]) for stage in stages if stage["stage"] == f"profile/{device}")
        return ChosenImplementations.read(folder / IMPLEMENTATIONS_FILE)

    def _told(self, command: str, space: str) -> Row:
        budgets = [f"search.budget_count={self.options.budgets}", f"refine.candidates={self.options.candidates}"]
        words = self.overrides(space, [*self.plans()[space].overrides, *MEASURED, *budgets])
        found: Row = self._once((command, *words), lambda: self._command(command, words))
        return found

    def _command(self, command: str, words: Sequence[str]) -> Row:
        with tempfile.TemporaryDirectory() as temporary:
            told = Path(temporary) / "told.json"
            parts = ["-m", "flows.cli", command, f"output_dir={self._output.resolve()}", *words, "--json", str(told)]
            subprocess.run([sys.executable, *parts], check=True)
            found: Row = json.loads(told.read_text())
        return found

    def timed_ms(
        self, device: str, reports: Mapping[str, Row], wanted: Mapping[str, Sequence[Config]]
    ) -> dict[str, dict[str, float]]:
        """Latencies by space and digest: medians of rounds in which the spaces take turns, each with its own tuned engine."""
        nets = {space: tailor_ir.load(self.trained(space).supernet) for space in wanted}
        chosen = {space: self.implementations(space, device) for space in wanted}
        found: dict[str, dict[str, list[float]]] = {space: {} for space in wanted}
        with local_agent(backend=device) as plain:
            for number in range(ROUNDS):
                for space, configs in wanted.items():
                    engine = next(one["engine"] for one in reports[space]["devices"] if one["name"] == device)
                    client = plain.with_engine(Engine(choices=engine["chosen"])) if engine else plain
                    net = nets[space]
                    meter = SubNetMeter(net, client, TIMING, DEFAULT_LIMITS, 1, chosen[space])
                    supernet = reports[space]["supernet_digest"]
                    file = self.folder / f"timed-{device}-{space}-{supernet}-{number}.jsonl"
                    with client.lease():
                        name = f"{device}, {space}, round {number + 1}"
                        measured = meter.measure([net.max_config, *configs], file, Terminal(), name)
                    for one in measured:
                        if one.p50_ms is None:
                            raise RuntimeError(f"{one.key}: {one.reason}")
                        found[space].setdefault(one.key, []).append(one.p50_ms)
        return {space: {key: float(np.median(own)) for key, own in times.items()} for space, times in found.items()}


def singles_of(net: SuperNet) -> list[Config]:
    """The network with one block replaced, by each alternative of each block."""
    return [
        {variable.name: choice}
        for variable in net.space.variables
        if variable.kind == "block"
        for choice in variable.choices
        if choice != variable.default
    ]


def measure(work: Work) -> Iterator[Row]:
    """A row for each device."""
    reports = {}
    for space in SPACES:
        reports[space] = work.report(space)
        reports[space]["supernet_digest"] = work.trained(space).supernet.parent.name[:12]
    trained = work.trained(ALTERNATIVES)
    net, splits = tailor_ir.load(trained.supernet), load_splits(trained.data)
    singles = singles_of(net)
    images = EvaluationData(splits["test"], splits["train"])
    file = work.folder / f"singles-{reports[ALTERNATIVES]['supernet_digest']}.jsonl"
    original, *replaced = accuracies(net, [{}, *singles], images, file, Terminal(), "blocks replaced")
    for device in DEVICES:
        of_device = {space: _of(report, device) for space, report in reports.items()}
        wanted = {space: _configs(found) for space, found in of_device.items()}
        wanted[ALTERNATIVES] = [*wanted[ALTERNATIVES], *singles]
        times_ms = work.timed_ms(device, reports, wanted)
        points = {space: points_of(found, times_ms[space]) for space, found in of_device.items()}
        fronts = fronts_of(points)
        base_ms = times_ms[ALTERNATIVES][net.space.digest(net.max_config)]
        rows = [
            Single(
                *next((name, str(choice)) for name, choice in config.items()),
                saved=1 - times_ms[ALTERNATIVES][net.space.digest(config)] / base_ms,
                lost_points=100 * (original.share - one.share),
            )
            for config, one in zip(singles, replaced, strict=True)
        ]
        yield {
            "device": device,
            "original_ms": base_ms,
            "engines": {space: (found["engine"] or {}).get("chosen", {}) for space, found in of_device.items()},
            "distinct": {space: report["supernet"]["distinct"] for space, report in reports.items()},
            "fronts": {space: fronts[space] | _winners(of_device, points, fronts, reports, space) for space in fronts},
            "ratio": ratio_to_better(fronts),
            "singles": [one._asdict() for one in rows],
            "best_trades": best_trades(rows),
            "duels": [one._asdict() for one in duels(rows)],
        }


def _winners(
    devices: Mapping[str, Row],
    points: Mapping[str, Any],
    fronts: Mapping[str, Row],
    reports: Mapping[str, Row],
    space: str,
) -> Row:
    """How many winners a space has, and the kinds in those on its front."""
    taken = {point["ms"] for point in fronts[space]["front"]}
    rows = {one["digest"]: one for one in devices[space]["winners"]}.values()
    configs = [row["config"] for row in rows if points[space][row["digest"]].ms in taken]
    return {"winners": len(points[space]), "kinds": occurrences(configs, _defaults(reports[space]))}


def _of(report: Row, device: str) -> Row:
    found: Row = next(one for one in report["devices"] if one["name"] == device)
    return found


def _configs(device: Row) -> list[Config]:
    return list({row["digest"]: row["config"] for row in device["winners"]}.values())


def _defaults(report: Row) -> dict[str, str]:
    return {one["name"]: one["default"] for one in report["supernet"]["variables"] if one["kind"] == "block"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="a second run goes on from there")
    parser.add_argument("--stage", choices=("trials", "train", "measure", "all"), default="all")
    parser.add_argument("--minutes", type=float, default=6.0, help="of each training")
    parser.add_argument("--phases", nargs="+", default=["sandwich", "branches", "tune"], help="of both")
    parser.add_argument("--shares", nargs="+", type=float, default=[2.0, 1.0, 1.0], help="of the time, of both")
    parser.add_argument("--budgets", type=int, default=16, help="of each device")
    parser.add_argument("--candidates", type=int, default=6, help="SubNets that are measured for each budget")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the README")
    options = parser.parse_args()
    if len(options.phases) != len(options.shares):
        parser.error(f"{len(options.phases)} --phases and {len(options.shares)} --shares; allowed: as many of both")
    torch.set_num_threads(1)
    work = Work(options)
    for space, plan in work.plans().items():
        print(f"{space}: {' '.join(plan.overrides)}, {plan.seconds:.0f} s")
    if options.stage == "trials":
        return
    trainings = [work.train_row(space) for space in SPACES]
    for row in trainings:
        print(row)
    if options.stage == "train":
        return
    devices = list(measure(work))
    show_fronts(trainings, devices, markdown=options.markdown)
    show_replacements(devices, markdown=options.markdown)
    if options.json:
        options.json.write_text(json.dumps({"trainings": trainings, "devices": devices}, indent=1) + "\n")


if __name__ == "__main__":
    main()
