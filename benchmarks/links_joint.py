"""SubNet, devices and coding chosen together over shaped links, beside the largest SubNet placed by other methods.

    python -m benchmarks.links_joint --work DIR [--mbps 1 10 100] [--delay-ms 2 20] [--device-backend openvino]
    [--requests 30] [--within-points 0.3] [--json links_joint.json] [--markdown] [OVERRIDE…]

`autotailor predict` trains a SuperNet in --work and measures its operators for home and device, as OVERRIDE says (model, data,
epochs); what is there is not made again. Home, device and links are those of `benchmarks.links`, and so are the plans of the
other methods, for the largest SubNet in fp32. Ours chooses SubNet, device of each piece and coding together
(`tasks.placement.joint`), home and device as slow as the largest SubNet is beside its table, and messages slower by what
they take at home, which the plans before have shown.

*Equal accuracy*: of the fastest joint choices that are predicted to lose 2, 1.9, … points and to gain 2, the first one counts
whose accuracy on validation images, with coded values, is at least the largest SubNet's, less --within-points; where none is,
the largest SubNet, in the first coding with that accuracy. The table has both accuracies on test images.

Bars: over all links ours takes 35 % less than each of the others on average; predictions of ours within ±10 %.
Root, `ip` and `tc` are needed, as for `benchmarks.links`. What is in the file of --json is not measured again.
"""

import argparse
import logging
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

import tailor_ir
from adaptive_runtime.offload.split import HOME
from benchmarks.bars import Terminal
from benchmarks.joint_search import CODINGS, LeastLatency, subnet_columns
from benchmarks.links import (
    BACKENDS,
    OFF_BAR,
    WITHIN_BAR,
    PlannedChain,
    Results,
    Row,
    Times,
    add_link_options,
    latency_ms,
    off,
    over,
    requests_over,
    require_root,
    told,
    unlimited_devices,
    written,
)
from benchmarks.links_methods import DEVICE, OTHERS, CodedPlan
from benchmarks.shaped_links import ShapedLink
from benchmarks.tables import show
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from profiling_agents.messages import ActivationCoding
from solvers.partition import PartitionConditions, stays
from solvers.tables import Codes, Infeasible
from tailor_ir import Config, SuperNet, find_pieces
from tasks.base.schemas.predictions import SENSITIVITIES_FILE
from tasks.data import load_splits
from tasks.evaluation.subnets import EvaluationData, accuracy, count_correct, statistics_of
from tasks.placement.codings import CodingLosses, arrived_batch, measured_losses
from tasks.placement.joint_problem import JointSearch, JointSpace, JointTerms
from tasks.placement.partition import DeviceTable, find_supernet, open_tables
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.search.settings import PlacementSettings, Settings

LOST_POINTS = np.arange(2.0, -2.05, -0.1).round(1).tolist()
LOG = logging.getLogger(__name__)
LESS_BAR, LEAST_POINTS = 0.35, -0.5
MBPS, DELAYS_MS = (1.0, 10.0, 100.0), (2.0, 20.0)
JOINT = "joint"


class Trained(NamedTuple):
    """What a finished run has of a SuperNet. tables: of home and of the device. test: images of the table of accuracies."""

    net: SuperNet
    tables: tuple[DeviceTable, ...]
    predictor: AccuracyPredictor
    losses: CodingLosses
    validation: EvaluationData
    test: EvaluationData


class JointChoice(NamedTuple):
    """A SubNet, the device of each of its operators, and in which coding they send."""

    config: Config
    devices: tuple[int, ...]
    coding: ActivationCoding

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Operators that run without a change of device."""
        return tuple(stay.steps for stay in stays(self.devices))

    @property
    def plan(self) -> CodedPlan:
        """For these groups."""
        return CodedPlan(self.coding, tuple((HOME, DEVICE)[stay.device] for stay in stays(self.devices)))


def trained(options: argparse.Namespace) -> Trained:
    """The SuperNet of a run that is there, or is made."""
    work, pair = options.work, (BACKENDS[0], options.device_backend)
    words = [f"output_dir={work}", f"device=[{','.join(dict.fromkeys(pair))}]", *options.overrides]
    subprocess.run([sys.executable, "-m", "flows.cli", "predict", *words], check=True)
    config = validate(RunConfig, compose_config("config", words))
    net = tailor_ir.load(find_supernet(work))
    folders = (work / "stages" / "sensitivities").rglob(SENSITIVITIES_FILE)
    sensitivities = max(folders, key=lambda file: file.stat().st_mtime)
    splits = load_splits(config.data)
    validation, test = (EvaluationData(splits[name], splits["train"]) for name in ("validation", "test"))
    settings = PlacementSettings(coding_images=options.coding_images)
    losses = measured_losses(net, validation, settings, Terminal())
    return Trained(net, open_tables(work, pair), AccuracyPredictor.load(sensitivities), losses, validation, test)


def coded_accuracy(net: SuperNet, choice: JointChoice, images: EvaluationData) -> float:
    """Share of images that are classified correctly when values cross in the coding, those of each image by themselves."""
    groups = [list(group) for group in choice.groups]
    modules = net.parts(choice.config, groups, statistics_of(net, choice.config, images))
    devices = choice.plan.devices

    @torch.no_grad()
    def forward(x_BCHW: torch.Tensor) -> torch.Tensor:
        value, at = x_BCHW, HOME
        for module, device in zip(modules, devices, strict=True):
            value = module(value if device == at else arrived_batch(value, choice.coding))
            at = device
        return value if at == HOME else arrived_batch(value, choice.coding)

    height, width = net.input_shape(choice.config)[-2:]
    return count_correct(forward, images.batches((height, width)), images.problem).share


class EqualAccuracy:
    """Chooses for a link. whole: measured times of the largest SubNet, by which home and device are slower than their tables.

    within_points: so much less on validation images counts as equal.

    Accuracies are measured once for each choice.
    """

    def __init__(self, known: Trained, whole: Times, within_points: float) -> None:
        self.known, net = known, known.net
        largest = net.pre_partition().under(net.space.row(net.max_config))
        tables_ms = [float(table.compute_ms(largest).sum()) + table.offset_ms for table in known.tables]
        self._slow_down = tuple(sum(each_ms) / table_ms for each_ms, table_ms in zip(whole, tables_ms, strict=True))
        pieces = find_pieces(net.pre_partition())
        self._space = JointSpace(space=net.space, pieces=pieces, devices=2, codings=len(CODINGS))
        self.accuracies = {
            name: accuracy(net, net.max_config, data).share
            for name, data in (("validation", known.validation), ("test", known.test))
        }
        self._least = self.accuracies["validation"] - within_points / 100
        self._share = cache(lambda key: coded_accuracy(net, self._choices[key], known.validation))
        self._choices: dict[tuple[Any, ...], JointChoice] = {}

    def chosen(self, link: ShapedLink, elsewhere_ms: float) -> JointChoice:
        """The first candidate that is as accurate as the largest SubNet.

        elsewhere_ms: what a request that is sent takes at home beside the link.
        """
        known = self.known
        conditions = PartitionConditions.of(2, link.mbps, link.delay_ms + elsewhere_ms / 2, slow_down=self._slow_down)
        terms = JointTerms(
            space=self._space,
            devices=known.tables,
            conditions=conditions,
            codings=CODINGS,
            losses=known.losses.table(CODINGS),
        )
        for code in self._candidates(JointSearch(terms, known.predictor, Settings(method="exact"))):
            choice = self._decoded(code)
            key = (known.net.space.digest(choice.config), choice.devices, choice.coding)
            self._choices[key] = choice
            if self._share(key) >= self._least:
                return choice
        return choice

    def _candidates(self, search: JointSearch) -> Iterator[Codes]:
        """The fastest first. The last one is the largest SubNet in fp32."""
        least, space = LeastLatency(search, {}), self._space
        try:
            for points in LOST_POINTS:
                yield least.code(points / 100)
        except Infeasible:
            LOG.info("no SubNet is predicted to gain %g points", -points)
        largest = subnet_columns(space, space.cardinalities - 1)
        for coding in range(len(CODINGS)):
            yield LeastLatency(search, largest | {space.coding: coding}).code(1.0)

    def _decoded(self, code: Codes) -> JointChoice:
        net, space = self.known.net, self._space
        code = space.canonical_codes(code[None])[0]
        row = code[: space.variables]
        device_of = space.placed(code)
        devices = tuple(device_of[at] for at in net.pre_partition().under(row).positions)
        return JointChoice(net.space.decode(row), devices, CODINGS[int(code[space.coding])])


def measured(known: Trained, links: Sequence[ShapedLink], results: Results, options: argparse.Namespace) -> None:
    """The links that are missing, into the results."""
    name = str(options.work)
    with tempfile.TemporaryDirectory() as temporary, unlimited_devices(options) as unlimited:
        folder = Path(temporary)
        largest = PlannedChain.of(name, known.net, links, folder, unlimited, results, options)
        choices = EqualAccuracy(known, largest.whole, options.within_points)
        elsewhere_ms: list[float] = []
        for at, link in enumerate(links):
            if results.has(name, link):
                continue
            plans = over(link, largest, options)
            elsewhere_ms += [one["elsewhere_ms"] for plan in plans if plan["sent"] for one in plan["known"]]
            choice = choices.chosen(link, float(np.median(elsewhere_ms or [0.0])))
            chain = written(known.net, choice.groups, folder / f"joint-{at}", choice.config)
            own = f"{known.net.space.digest(choice.config)}, {list(map(len, choice.groups))} on {choice.plan.devices}"
            times = results.times(f"{name}, {own}", chain, unlimited, options)
            (joint,) = requests_over(link, chain, [choice.plan], times, options)
            test = (choices.accuracies["test"], coded_accuracy(known.net, choice, known.test))
            row = {"network": name, **link._asdict(), "plans": plans, JOINT: joint, "accuracies": test}
            results.rows.append(row | {"macs": share_of_macs(known.net, choice)})
            results.save()
            print(f"{link.mbps:g} Mbit/s, {link.delay_ms:g} ms: {joint['latency_ms']:.1f} ms", flush=True)


def share_of_macs(net: SuperNet, choice: JointChoice) -> float:
    """Multiply-accumulates of the SubNet over the largest one's."""
    return float(net.macs(choice.config) / net.macs(net.max_config))


def shown(rows: Sequence[Row], *, markdown: bool) -> None:
    """The table."""
    heads = ["Mbit/s", "delay, ms", "at home", "coding", "MACs", "ours, ms", "predicted", "off", *OTHERS]
    heads += ["accuracy of ours", "largest's"]
    cells = []
    for row in rows:
        own, (largest, ours) = row[JOINT], row["accuracies"]
        cells.append(
            [
                f"{row['mbps']:g}",
                f"{row['delay_ms']:g}",
                f"{own['devices'].count(HOME)} of {len(own['devices'])}",
                own["coding"] if set(own["devices"]) != {HOME} else "none",
                f"{row['macs']:.0%}",
                f"{own['latency_ms']:.1f}",
                f"{own['predicted_ms']:.1f}",
                f"{100 * off(own):+.0f} %",
                *(f"{latency_ms(row, name):.1f}" for name in OTHERS),
                f"{ours:.1%}",
                f"{largest:.1%}",
            ]
        )
    show(heads, cells, markdown=markdown)


def bars(rows: Sequence[Row]) -> list[tuple[str, bool]]:
    """A line for each bar, and whether it is kept."""
    found = []
    for name in OTHERS:
        less = float(np.mean([1 - row[JOINT]["latency_ms"] / latency_ms(row, name) for row in rows]))
        found.append((f"less than {name}, mean over links: {less:.1%}, bar {LESS_BAR:.0%}", less >= LESS_BAR))
    within = sum(abs(off(row[JOINT])) <= OFF_BAR for row in rows)
    found.append((f"predictions of ours within ±10 %: {within} of {len(rows)}", within >= WITHIN_BAR * len(rows)))
    gained = float(np.mean([ours - largest for largest, ours in (row["accuracies"] for row in rows)]))
    found.append(
        (f"accuracy of ours on test images: {100 * gained:+.2f} points, mean over links", 100 * gained >= LEAST_POINTS)
    )
    return found


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options, with those of `benchmarks.links` that are none here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="output folder of the run")
    add_link_options(parser, MBPS, DELAYS_MS)
    parser.add_argument("--coding-images", type=int, default=64, help="on which it is measured what codings lose")
    parser.add_argument("--within-points", type=float, default=0.3, help="so much less on validation images is equal")
    parser.add_argument("--json", type=Path, default=Path("links_joint.json"))
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    options = parser.parse_args(argv)
    return argparse.Namespace(**vars(options), networks=[str(options.work)], coding="fp32", second_device_backend=None)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, print the table, and end with 1 where a bar is missed."""
    options = parsed(argv)
    results = Results(options.json, options)
    links = [ShapedLink(*one) for one in product(options.mbps, options.delay_ms)]
    if not all(results.has(str(options.work), link) for link in links):
        require_root()
        measured(trained(options), links, results, options)
    shown(results.rows, markdown=options.markdown)
    told(bars(results.rows))


if __name__ == "__main__":
    main()
