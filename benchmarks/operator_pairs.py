"""CrowdHMTware's Table III: what each compression operator is worth alone, and each pair of them, on three tasks.

    python -m benchmarks.operator_pairs --work DIR [--data sounds glyphs motion] [--lost-points 2] [--budgets 8]
                                        [--json FILE] [--markdown] [OVERRIDE …]

The operators of the article (§III-A), and what stands for them here:

    η1  factorised convolutions    alternatives `low_rank` and `separable`
    η2  squeeze and expand (Fire)  alternative `fire`
    η3  composite scaling          `resolution` (all kernels are 3 × 3 already)
    η4  Ghost modules              alternative `ghost`
    η5  depth                      `depth`
    η6  channels                   `width_mult` and `expand_ratio`

On each task a slim ResNet-18 learns from random weights and becomes one SuperNet with all of them, trained once. A row is
the exact search over the part of the space that applies its operators alone; so all rows have the same weights and the same
training. The search is asked at --budgets latencies, from the least of that part to the original's. What is found is
evaluated on validation samples; what is predicted to be the fastest of all these that apply the row's operators alone and lose
at most --lost-points there is timed in onnxruntime on one thread, in turns with the original. Of what was timed the fastest
that applies its operators alone is the row's. Its accuracy is of test samples. Energies are those of the analytic model
(`tasks.prediction.resources`); parameters are counted with BatchNorm folded.

The original is the largest SubNet. MobileNetV2 (0.35 of its width, its maps as large as such small images need) learns the
same samples for as many epochs, as the article compares with it. OVERRIDEs go to all commands. DIR keeps everything; a second
run goes on from there.
"""

import argparse
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from re import sub
from typing import Any, NamedTuple

import numpy as np
import torch

import tailor_ir
from benchmarks.bars import Terminal
from benchmarks.tables import show
from benchmarks.trained import stages_of, train
from profiling_agents.client import local_agent
from profiling_agents.messages import MeasureSettings
from solvers.exact import optimum
from solvers.tables import Table
from tailor_ir import Choice, Config, Space, SuperNet, Variable
from tasks.base.artifacts import write_json
from tasks.data import load_splits
from tasks.data.dataset import Split
from tasks.evaluation.conversion import DEFAULT_LIMITS
from tasks.evaluation.subnets import EvaluationData, accuracies
from tasks.measuring.subnets import Subject, SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LATENCY_FILE, LatencyPredictor
from tasks.prediction.resources import EnergyPredictor, EnergySettings
from tasks.prediction.sensitivity import SENSITIVITIES_FILE
from tasks.search.problem import FORBIDDEN_MS, chain_of_tables, cost_tables, gain_tables

Row = dict[str, Any]
OPERATORS: Mapping[str, tuple[str, ...]] = {
    "η1": ("low_rank", "separable"),
    "η2": ("fire",),
    "η3": ("resolution",),
    "η4": ("ghost",),
    "η5": ("depth",),
    "η6": ("width_mult", "expand_ratio"),
}
"""Kinds of variables and of alternatives, by operator."""
COMBINATIONS = (*combinations(OPERATORS, 1), *combinations(OPERATORS, 2))
DEVICE = "onnxruntime"
TIMING, ROUNDS = MeasureSettings(warmup_ms=20.0, min_blocks=5, time_cap_ms=100.0), 3

DATA: Mapping[str, tuple[str, ...]] = {
    "sounds": ("data=sounds",),
    "glyphs": ("data=glyphs", "data.classes=20"),
    "motion": ("data=motion",),
}
COMMON = (
    "data.images=3600",
    "data.resolution=32",
    "data.workers=1",
    "model=timm",
    "base.processes=1",
    "base.epochs=8",
    f"device=[{DEVICE}]",
    "finetune.processes=1",
    "finetune.strategy=[sandwich,tune]",
    "finetune.phase_shares=[2,1]",
    "finetune.epochs=6",
    "finetune.learning_rate=0.002",
    "finetune.ranges.subnets=0",
    "runtime_options.tune=false",
    "predict.random_subnets=16",
    "predict.fit_subnets=8",
)
OURS = (
    "model.name=resnet18d",
    "model.options={channels:[16,32,48,96],stem_width:8}",
    "base.learning_rate=0.002",
    "space.alternatives=[low_rank,separable,fire,ghost]",
    "space.resolution=[16,24,32]",
    "space.depth=auto",
    "space.width_mult=auto",
    "space.expand_ratio=auto",
)
THEIRS = (
    "model.name=mobilenetv2_035",
    "model.options={output_stride:8}",
    "base.optimiser=sgd",
    "base.learning_rate=0.1",
    "base.weight_decay=0",
)


class Published(NamedTuple):
    """A row of Table III, and the task here that is most like its data set. Factors: MobileNetV2's over the SubNet's."""

    operators: tuple[str, str]
    dataset: str
    points: float
    latency: float
    macs: float
    energy: float
    data: str


PUBLISHED = (
    Published(("η1", "η6"), "UbiSound", 1.3, 1.1, 4.3, 15.2, "sounds"),
    Published(("η2", "η6"), "Cifar-100", -2.1, 1.2, 5.6, 2.5, "glyphs"),
    Published(("η1", "η5"), "ImageNet", -0.9, 1.3, 8.6, 8.9, "glyphs"),
    Published(("η2", "η5"), "Har", -0.3, 0.8, 9.2, 2.1, "motion"),
    Published(("η1", "η6"), "StateFarm", 0.2, 0.7, 5.6, 5.9, "glyphs"),
)


def operator_of(variable: Variable, choice: Choice) -> str | None:
    """The operator that a choice applies; None: the original, or none of the article's."""
    if choice == variable.default:
        return None
    name = sub(r"_[\d.]+$", "", str(choice)) if variable.kind == "block" else variable.kind
    return next((operator for operator, names in OPERATORS.items() if name in names), None)


def applied(space: Space, config: Config) -> set[str]:
    """Operators of a config, which leaves out what decides nothing."""
    chosen = ((variable, config.get(variable.name, variable.default)) for variable in space.variables)
    return {operator for variable, choice in chosen if (operator := operator_of(variable, choice)) is not None}


def forbidden(space: Space, operators: Collection[str]) -> list[Table]:
    """Costs that no budget allows for the choices that apply another operator than these."""
    tables = []
    for column, variable in enumerate(space.variables):
        allowed = [one == variable.default or operator_of(variable, one) in operators for one in variable.choices]
        if not all(allowed):
            tables.append(Table((column,), np.where(allowed, 0.0, FORBIDDEN_MS)))
    return tables


def candidates(
    space: Space, gain: Sequence[Table], cost: Sequence[Table], operators: Collection[str], most_ms: float, budgets: int
) -> list[Config]:
    """Different SubNets with the largest gain that apply these operators alone, within budgets of the cost up to `most_ms`."""
    costs = [*cost, *forbidden(space, operators)]
    chain = chain_of_tables(space.cardinalities.tolist(), gain, (costs,), space.derived)
    least_ms = float(chain.least[0][0][0])
    codes = [optimum(chain, np.array([one_ms])).code for one_ms in np.geomspace(least_ms, most_ms, budgets)]
    return [space.decode(code) for code in np.unique(space.canonical_codes(np.array(codes)), axis=0)]


def fastest(rows: Iterable[Row], least_accuracy: float) -> Row | None:
    """Of rows with `accuracy` and `predicted_ms` the fastest that is accurate enough; None: none is."""
    good = [row for row in rows if row["accuracy"] >= least_accuracy - 1e-9]
    return min(good, key=lambda row: row["predicted_ms"], default=None)


def words_of(data: str, network: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Of the command line, for one network on one task."""
    return [*DATA[data], *COMMON, *network, *overrides]


class Task:
    """One task: its trained SuperNet with predictors, MobileNetV2, and what is evaluated and timed of both."""

    def __init__(self, data: str, options: argparse.Namespace) -> None:
        self.data, self.options, self.folder = data, options, options.work / data
        words = words_of(data, OURS, options.overrides)
        own = train(words, self.folder)
        stages = {one["stage"]: Path(one["folder"]) for one in stages_of("predict", words, self.folder)}
        theirs = train(words_of(data, THEIRS, options.overrides), self.folder, "compile").supernet
        self.net, self.theirs = tailor_ir.load(own.supernet), tailor_ir.load(theirs)
        self.keys = own.supernet.parent.name[:12], theirs.parent.name[:12]
        self.accuracy = AccuracyPredictor.load(stages["sensitivities"] / SENSITIVITIES_FILE)
        self.latency = LatencyPredictor.load(stages[f"latency/{DEVICE}"] / LATENCY_FILE)
        self.splits = load_splits(own.data)

    def row(self) -> Row:
        """The originals, and the SubNet of each combination of operators."""
        own = self.net.max_config
        by_operators = self._found(own)
        configs = {self._digest(config): config for config in (own, *(one["config"] for one in by_operators))}
        accuracy = self._accuracies(self.net, list(configs.values()), "test", 0)
        (their_accuracy,) = self._accuracies(self.theirs, [self.theirs.max_config], "test", 1)
        *times_ms, their_ms = self._times_ms(configs)
        known = dict(zip(configs, zip(accuracy, times_ms, strict=True), strict=True))
        winners = [self._of(config, known) for config in configs.values()]
        rows = [
            {"operators": one["operators"], "candidates": one["candidates"], **self._fastest(winners, one["operators"])}
            for one in by_operators
        ]
        return {
            "data": self.data,
            "subnets": self.net.space.distinct,
            "original": self._of(own, known),
            "mobilenetv2": {"accuracy": their_accuracy, "ms": their_ms, **needs(self.theirs, self.theirs.max_config)},
            "rows": rows,
        }

    def _found(self, own: Config) -> list[Row]:
        """By combination the fastest SubNet that loses few points on validation samples; the original where none does."""
        space, most_ms = self.net.space, self._predicted_ms(own)
        tables = gain_tables(space, self.accuracy), cost_tables(self.latency)
        found = [candidates(space, *tables, one, most_ms, self.options.budgets) for one in COMBINATIONS]
        configs = {self._digest(config): config for config in (own, *(one for some in found for one in some))}
        shares = self._accuracies(self.net, list(configs.values()), "validation", 0)
        rows: list[Row] = [
            {"config": config, "accuracy": share, "predicted_ms": self._predicted_ms(config)}
            for config, share in zip(configs.values(), shares, strict=True)
        ]
        least = rows[0]["accuracy"] - self.options.lost_points / 100
        by_operators = {one: [row for row in rows if applied(space, row["config"]) <= set(one)] for one in COMBINATIONS}
        return [
            {"operators": list(one), "candidates": len(some), "config": (fastest(some, least) or rows[0])["config"]}
            for one, some in by_operators.items()
        ]

    def _fastest(self, winners: Sequence[Row], operators: Sequence[str]) -> Row:
        """As measured, of those that apply these operators alone; the original is one of them."""
        own = (row for row in winners if applied(self.net.space, row["config"]) <= set(operators))
        return min(own, key=lambda row: row["ms"])

    def _of(self, config: Config, known: Mapping[str, tuple[float, float]]) -> Row:
        accuracy, ms = known[self._digest(config)]
        return {"config": config, "accuracy": accuracy, "ms": ms, **needs(self.net, config)}

    def _digest(self, config: Config) -> str:
        return self.net.space.digest(config)

    def _predicted_ms(self, config: Config) -> float:
        return float(self.latency.predict(self.net.space.encode([config]))[0])

    def _accuracies(self, net: SuperNet, configs: Sequence[Config], split: Split, which: int) -> list[float]:
        data = EvaluationData(self.splits[split], self.splits["train"], recalibration_images=256)
        file = self.folder / f"{split}-{self.keys[which]}.jsonl"
        return [one.share for one in accuracies(net, configs, data, file, Terminal(), f"{self.data}, {split}")]

    def _times_ms(self, configs: Mapping[str, Config]) -> list[float]:
        """Of SubNets, the original first, then of MobileNetV2."""
        subjects = [Subject(digest, self.net, config) for digest, config in configs.items()]
        subjects.append(Subject("mobilenetv2", self.theirs, self.theirs.max_config))
        file = self.folder / f"timed-{'-'.join(self.keys)}.jsonl"
        with local_agent(DEVICE) as client, client.lease():
            meter = SubNetMeter(self.net, client, TIMING, DEFAULT_LIMITS, ROUNDS)
            measured = meter.measure_all(subjects, file, Terminal(), f"{self.data}, latencies")
        times_ms = []
        for one in measured:
            if one.p50_ms is None:
                raise RuntimeError(f"{one.key}: {one.reason}")
            times_ms.append(one.p50_ms)
        return times_ms


def needs(net: SuperNet, config: Config) -> Row:
    """Multiply-accumulates, parameters and modelled energy of a SubNet."""
    energy = EnergyPredictor.compile(net, EnergySettings())
    return {
        "macs": net.macs(config),
        "parameters": net.parameters(config),
        "energy_mj": float(energy.predict(net.space.encode([config]))[0]),
    }


def gains(row: Row, base: Row) -> tuple[float, float, float, float, float]:
    """Points of accuracy above another network; its latency, MACs, parameters and energy over the row's."""
    ms, macs, parameters, energy = (base[key] / row[key] for key in ("ms", "macs", "parameters", "energy_mj"))
    return 100 * (row["accuracy"] - base["accuracy"]), ms, macs, parameters, energy


def show_networks(tasks: Sequence[Row], markdown: bool) -> None:
    heads = ("task", "SubNets", "network", "accuracy", "latency, ms", "M MACs", "k parameters", "energy by model, µJ")
    cells = [
        (
            task["data"],
            f"{task['subnets']:.2e}",
            name,
            f"{task[key]['accuracy']:.1%}",
            f"{task[key]['ms']:.3f}",
            f"{task[key]['macs'] / 1e6:.2f}",
            f"{task[key]['parameters'] / 1e3:.0f}",
            f"{1e3 * task[key]['energy_mj']:.1f}",
        )
        for task in tasks
        for key, name in (("original", "original"), ("mobilenetv2", "MobileNetV2"))
    ]
    show(heads, cells, markdown=markdown)


def show_combinations(tasks: Sequence[Row], markdown: bool) -> None:
    """A row for each combination of operators, a column for each task: what it gains over the original there."""
    heads = ("operators", *(f"{task['data']}: points, × faster, × fewer MACs, parameters, energy" for task in tasks))
    by_operators = [{tuple(row["operators"]): row for row in task["rows"]} for task in tasks]
    cells = []
    for one in COMBINATIONS:
        found = [gains(rows[one], task["original"]) for rows, task in zip(by_operators, tasks, strict=True)]
        cells.append((" + ".join(one), *(f"{p:+.1f}, " + ", ".join(f"{x:.2f}" for x in more) for p, *more in found)))
    show(heads, cells, markdown=markdown, width=200)


def show_published(tasks: Sequence[Row], markdown: bool) -> None:
    """The article's rows beside those here, both against MobileNetV2."""
    quantities = ("points", "latency", "MACs", "energy")
    heads = ("operators", "theirs on", *quantities, "ours on", *quantities)
    by_data = {task["data"]: task for task in tasks}
    cells = []
    for one in PUBLISHED:
        if one.data not in by_data:
            continue
        task = by_data[one.data]
        own = next(row for row in task["rows"] if tuple(row["operators"]) == one.operators)
        points, ms, macs, _, energy = gains(own, task["mobilenetv2"])
        theirs = (f"{one.points:+.1f}", *(f"{factor:.1f} ×" for factor in (one.latency, one.macs, one.energy)))
        ours = (f"{points:+.1f}", *(f"{factor:.1f} ×" for factor in (ms, macs, energy)))
        cells.append((" + ".join(one.operators), one.dataset, *theirs, one.data, *ours))
    show(heads, cells, markdown=markdown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="of all commands, such as data.images=2000")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="a second run goes on from there")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--lost-points", type=float, default=2.0, help="of validation accuracy, at most (2)")
    parser.add_argument("--budgets", type=int, default=8, help="latencies at which a combination is searched (8)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", action="store_true", help="print the tables of the README")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    tasks = [Task(data, options).row() for data in options.data]
    show_networks(tasks, options.markdown)
    show_combinations(tasks, options.markdown)
    show_published(tasks, options.markdown)
    if options.json:
        write_json(options.json, tasks)


if __name__ == "__main__":
    main()
