"""The stage "exits": thresholds with a promise for a few SubNets of one device, and their results on test images.

`tasks.exits.latency` chooses the SubNets. All exits of a SubNet answer the holdout images (the validation split) in one
pass, which computes the exits' common parts once; the device times the SubNet up to each exit; `calibrate` finds
thresholds from both, and the test split measures their results. If a promise is impossible, the stage reports this in
one line and the run continues. A second call in the same folder resumes. Pictures, small PNG files of images as the
network gets them, show the images that leave first and last.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import tailor_ir
from adaptive_runtime.exits import NO_EXIT, ExitChoice, ExitTable, Thresholds
from profiling_agents.client import AgentClient
from profiling_agents.messages import Measurement
from tailor_ir import Config, SuperNet
from tailor_ir.subnets.prefixes import Prefixes
from tasks.base.artifacts import SubNetLines, Workspace, append_line, read_lines, write_bytes
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.placed import OWN_CHOICES, ChosenImplementations
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import Front
from tasks.data import Batch, DataSettings, Split, load_splits
from tasks.data.dataset import check_same
from tasks.evaluation.settings import EvaluationSettings
from tasks.evaluation.subnets import (
    EvaluationData,
    EvaluationResources,
    EvaluationWorkers,
    accuracies,
    accuracy_lines,
    statistics_of,
)
from tasks.evaluation.subnets.images import pick_device
from tasks.exits.calibration import (
    CalibratedExits,
    HeldOut,
    Leaving,
    calibrate,
    classes_leaving,
    exits_left,
    outcome_of,
)
from tasks.exits.latency import (
    EXIT,
    ExitTimes,
    exits_of,
    expected_winners,
    passing_subnets,
    times_of,
    weighed_by,
    weighed_subnets,
    with_exit,
)
from tasks.exits.policies import (
    POLICIES_FILE,
    TABLE_FILE,
    THRESHOLDS_FILE,
    LeavingImage,
    MeasuredExit,
    Policies,
    SubnetPolicy,
)
from tasks.exits.settings import Settings
from tasks.measuring.lut import Lut
from tasks.measuring.settings import RepeatedTimingSettings
from tasks.measuring.subnets import SubNetMeter
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.layers import Layers
from tasks.prediction.resources import EnergyPredictor
from tasks.search.stage import Target

Answers = tuple[NDArray[np.float32], NDArray[np.int64]]
"""Logits (N, E, K) of N images at E exits for K classes, and labels (N,)."""


@torch.no_grad()
def answers_of(
    net: SuperNet, exits: Sequence[Config], data: EvaluationData, progress: Progress, name: str = "answers of exits"
) -> Answers:
    """The answers of one SubNet up to each of its exits, in order; each exit has its own BatchNorm statistics, as exported."""
    together = Prefixes(net.elastic, exits, data.features_mib)
    together.activate([statistics_of(net, config, data) for config in exits])
    logits, labels = [], []
    with progress.bar(name, data.counts["images"]) as bar:
        for x_BCHW, y_B in data.batches(net.input_size(exits[-1])):
            found = dict(together(x_BCHW))
            logits.append(np.stack([found[place].float().cpu().numpy() for place in range(len(exits))], 1))
            labels.append(y_B.cpu().numpy())
            bar.advance(len(y_B))
    return np.concatenate(logits), np.concatenate(labels)


MOST_PIXELS = 64
"""Largest width and height of a picture."""


def write_pictures(batches: Iterable[Batch], files: Mapping[int, Sequence[Path]]) -> None:
    """Write each image whose number, counted over all batches, is in `files` into its files."""
    first, last = 0, max(files, default=-1)
    for x_BCHW, _ in batches:
        for row in range(len(x_BCHW)):
            for file in files.get(first + row, ()):
                file.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(file, png(x_BCHW[row]))
        first += len(x_BCHW)
        if first > last:
            break


def png(x_CHW: torch.Tensor) -> bytes:
    """One image as PNG, its darkest value black and its brightest white. Only the first channel is shown if there are not 3."""
    values = x_CHW.detach().float().cpu().numpy()
    values = values if len(values) == 3 else values[:1]
    low, high = float(values.min()), float(values.max())
    bytes_CHW = ((values - low) / max(high - low, 1e-9) * 255).round().astype(np.uint8)
    picture = Image.fromarray(bytes_CHW.transpose(1, 2, 0) if len(bytes_CHW) == 3 else bytes_CHW[0])
    picture.thumbnail((MOST_PIXELS, MOST_PIXELS))
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return stream.getvalue()


POLICY_LINES = "policies.jsonl"
PICTURES = "pictures"
HELD_OUT: Split = "validation"
TEST: Split = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDevice:
    """One device: its predictors, its look-up table, and its winners. target: as in the search. batch: samples per run."""

    target: Target
    accuracy: AccuracyPredictor
    latency: LatencyPredictor
    energy: EnergyPredictor
    lut: Path
    front: Front
    batch: int = 1
    precision: str = "fp32"
    implementations: ChosenImplementations = OWN_CHOICES


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBench:
    """Finds and tests thresholds of SubNets. measured: measurements by the SubNet's digest."""

    settings: Settings
    net: SuperNet
    device: PolicyDevice
    held_out: EvaluationData
    test: EvaluationData
    layers: Layers
    out: Path
    progress: Progress
    measured: dict[str, Measurement] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The exits, the whole network last."""
        return exits_of(self.net.space)

    def upto(self, config: Config) -> list[Config]:
        """A SubNet up to each exit that it passes; the last is its own exit."""
        return [with_exit(self.net.space, config, name) for name in self.net.exits(config)]

    def time(self, subnets: Sequence[Config], meter: SubNetMeter, lines: SubNetLines) -> None:
        """Measure SubNets up to each exit, and the winners. The meter needs the largest SubNet first."""
        every = [self.net.max_config, *(one for config in subnets for one in self.upto(config))]
        every += [row.config for row in self.device.front.winners]
        different = {self.net.space.digest(config): config for config in every}
        found = meter.measure(list(different.values()), lines, self.progress, "measure exits")
        self.measured.update({one.key: one for one in found})

    def times(self, config: Config) -> ExitTimes:
        """The latencies of a SubNet's exits. UserError: one cannot be timed."""
        upto = self.upto(config)
        return times_of(self.layers, upto, [self.measured[self.net.space.digest(one)] for one in upto])

    def policy(self, config: Config) -> SubnetPolicy:
        """Thresholds of a SubNet with their test results, or the reason why it has none."""
        digest = self.net.space.digest(config)
        known = [line["policy"] for line in read_lines(self.out / POLICY_LINES) if line["digest"] == digest]
        if known:
            return SubnetPolicy.model_validate(known[0])
        upto, names, short = self.upto(config), self.net.exits(config), digest[:8]
        try:
            times = self.times(config)
        except UserError as error:
            return self._kept(SubnetPolicy(digest=digest, config=config, exits=(), reason=self._described(error)))
        held_out = answers_of(self.net, upto, self.held_out, self.progress, f"{short}: exits, held-out images")
        test = answers_of(self.net, upto, self.test, self.progress, f"{short}: exits, test images")
        plain = SubnetPolicy(digest=digest, config=config, exits=_rows(names, times, held_out, test))
        try:
            images = HeldOut(logits_NEK=held_out[0], labels_N=held_out[1], latency_ms_E=times.latency_ms_E, names=names)
            found = calibrate(images, self.settings.promise, np.random.default_rng(self.settings.seed))
        except UserError as error:
            return self._kept(plain.model_copy(update={"reason": self._described(error)}))
        return self._kept(self._tested(plain, found, times, test))

    def _described(self, error: UserError) -> str:
        self.progress.say(f"{self.device.target.name}: {error}; no thresholds")
        return str(error)

    def _kept(self, row: SubnetPolicy) -> SubnetPolicy:
        if row.thresholds is not None:
            text = Thresholds.model_validate(row.thresholds).to_json()
            write_bytes(self.out / THRESHOLDS_FILE.format(row.digest), text.encode())
        append_line(self.out / POLICY_LINES, {"digest": row.digest, "policy": row.model_dump(mode="json")})
        return row

    def _tested(self, plain: SubnetPolicy, found: CalibratedExits, times: ExitTimes, test: Answers) -> SubnetPolicy:
        """The policy of a SubNet with its thresholds and their results on the test images."""
        thresholds, (logits_NEK, labels_N), space = found.thresholds, test, self.net.space
        images = HeldOut(logits_NEK=logits_NEK, labels_N=labels_N, latency_ms_E=times.latency_ms_E)
        leaving, chain, names = (
            Leaving.of(thresholds, images),
            times.of_chain(thresholds),
            self.test.dataset.class_names,
        )
        energies_mj_E = times.energies_mj_E
        if energies_mj_E is None:
            energies_mj_E = self.device.energy.predict(space.canonical_codes(space.encode(self.upto(plain.config))))
        earliest, latest = self._pictures(plain, leaving, labels_N)
        changed = {
            "exits": exits_left(plain.exits, thresholds, leaving, chain),
            "thresholds": thresholds.model_dump(mode="json"),
            "by_measure": dict(found.by_measure),
            "tested": outcome_of(leaving, chain, energies_mj_E),
            "classes": classes_leaving(leaving, labels_N, names, thresholds.full_exit, chain.latency_ms_E),
            "earliest": earliest,
            "latest": latest,
        }
        return plain.model_copy(update=changed)

    def _pictures(
        self, row: SubnetPolicy, leaving: Leaving, labels_N: NDArray[np.int64]
    ) -> list[tuple[LeavingImage, ...]]:
        """Pictures of the test images that leave first, and of those that leave last, written into the stage's folder."""
        names, files = self.test.dataset.class_names, dict[int, list[Path]]()
        found = []
        chosen = {"first": leaving.earliest(self.settings.pictures), "last": leaving.latest(self.settings.pictures)}
        for end, numbers in chosen.items():
            rows = []
            for place, number in enumerate(numbers):
                file = f"{PICTURES}/{row.digest[:16]}-{end}-{place}.png"
                files.setdefault(number, []).append(self.out / file)
                image = LeavingImage(
                    file=file,
                    label=names[int(labels_N[number])],
                    answer=names[int(leaving.answers_N[number])],
                    exit=row.exits[int(leaving.taken_N[number])].exit,
                    confidence=float(leaving.confidences_N[number]),
                )
                rows.append(image)
            found.append(tuple(rows))
        write_pictures(self.test.batches(self.net.input_size(row.config)), files)
        return found

    def table(self, rows: Sequence[SubnetPolicy], evaluated: SubNetLines) -> ExitTable:
        """All measured choices: SubNets up to each exit, and the winners. Accuracies are measured on the holdout images."""
        winners = self.device.front.winners
        configs = [row.config for row in winners]
        shares = [one.share for one in accuracies(self.net, configs, self.held_out, evaluated, self.progress)]
        found: dict[tuple[str, int], tuple[float, float]] = {}
        for row in rows:
            for one in row.exits:
                found[self._place(row.config, one.exit)] = (one.accuracy[HELD_OUT], one.alone_ms)
        for winner, share in zip(winners, shares, strict=True):
            timed = self.measured[winner.digest].p50_ms
            if timed is not None:
                found.setdefault(self._place(winner.config, str(winner.config[EXIT])), (share, timed))
        subnets = tuple(dict.fromkeys(digest for digest, _ in found))
        choices = [
            ExitChoice(subnets.index(digest), place, accuracy, latency_ms)
            for (digest, place), (accuracy, latency_ms) in found.items()
        ]
        return ExitTable(subnets=subnets, exits=self.names, choices=tuple(choices))

    def _place(self, config: Config, exit_: str) -> tuple[str, int]:
        """The key in a table of exits: the whole SubNet's digest and the number of the exit."""
        last, space = self.names[-1], self.net.space
        return space.digest(with_exit(space, config, last)), NO_EXIT if exit_ == last else self.names.index(exit_)

    def policies(self, rows: Sequence[SubnetPolicy], reason: str | None) -> Policies:
        """The content of `policies.json`, with expected latencies and winners by the exit rates of the best SubNet."""
        settings = self.settings
        found = Policies(
            device=self.device.target.name,
            epsilon=settings.epsilon,
            confidence=settings.confidence,
            images=self.held_out.counts["images"],
            needed=settings.promise.images_needed(),
            reason=reason,
            subnets=tuple(rows),
        )
        best, device = found.best, self.device
        if best is None:
            return found
        passed_ms = self.times(best.config).of_chain(Thresholds.model_validate(best.thresholds)).passed_ms_E.tolist()
        known = {one.exit: (one.share or 0.0, passed) for one, passed in zip(best.exits, passed_ms, strict=True)}
        rates, passed = zip(*(known.get(name, (0.0, 0.0)) for name in self.names), strict=True)
        expected = weighed_by(device.latency, self.net.space, rates, np.array(passed))
        weighed = weighed_subnets(self.net.space, expected, device.accuracy, device.front)
        changed: dict[str, Any] = {"rates_of": best.digest, "weighed": weighed}
        if settings.by_expected:
            changed["by_expected"] = expected_winners(
                self.net, device.target, expected, device.accuracy, device.front, self.progress
            )
        return found.model_copy(update=changed)


def _rows(names: Sequence[str], times: ExitTimes, held_out: Answers, test: Answers) -> tuple[MeasuredExit, ...]:
    shares = {
        split: (logits_NEK.argmax(2) == labels_N[:, None]).mean(0)
        for split, (logits_NEK, labels_N) in ((HELD_OUT, held_out), (TEST, test))
    }
    return tuple(
        MeasuredExit(
            exit=name,
            alone_ms=float(times.alone_ms_E[place]),
            latency_ms=float(times.latency_ms_E[place]),
            accuracy={split: float(right_E[place]) for split, right_E in shares.items()},
        )
        for place, name in enumerate(names)
    )


TIMED_FILE = "timed.jsonl"
EVALUATED_FILE = "evaluated.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """The SuperNet and the device whose SubNets get thresholds, and the images that decide on them.

    timing, evaluation: how SubNets are timed and evaluated. supernet: its folder. workers: processes that evaluate SubNets;
    None: this process does.
    """

    settings: Settings
    timing: RepeatedTimingSettings
    evaluation: EvaluationSettings
    data: DataSettings
    supernet: Path
    device: PolicyDevice
    workers: EvaluationWorkers | None = None


def run(request: PolicyRequest, client: AgentClient, workspace: Workspace) -> StageResult:
    """Write thresholds and the table of exits; writes and returns `policies.json`.

    client: the caller holds its lease. UserError if the data differ from the data that the SuperNet was made for.
    """
    settings, device, supernet = request.settings, request.device, request.supernet
    out, progress, store = workspace.out, workspace.progress, workspace.store
    splits, evaluation = load_splits(request.data), request.evaluation
    check_same(splits["train"], supernet)
    net = tailor_ir.load(supernet)
    images = EvaluationData(
        splits[HELD_OUT],
        splits["train"],
        limit=settings.images,
        recalibration_images=evaluation.recalibration_images,
        resources=EvaluationResources(
            device=pick_device("auto"), features_mib=evaluation.features_mib, workers=request.workers
        ),
    )
    net.elastic.to(images.device)
    bench = PolicyBench(
        settings=settings, net=net, device=device, held_out=images, test=images.of(splits[TEST], limited=False),
        layers=Layers(net, Lut.open(device.lut), device.latency.correction), out=out, progress=progress,
    )  # fmt: skip
    reason = _unfit(device)
    rows: list[SubnetPolicy] = []
    if reason is None:
        passing = passing_subnets(net, device.front, settings.subnets)
        if not passing:
            reason = f"exits: no winner of device.{device.target.name} passes an exit before its own; no thresholds"
        timing = request.timing
        meter = SubNetMeter(net, client, timing.measure, timing.limits, timing.rounds, device.implementations)
        bench.time(passing, meter, meter.lines(store, supernet, out / TIMED_FILE, progress))
        rows = [bench.policy(config) for config in passing]
        evaluated = accuracy_lines(store, supernet, HELD_OUT, images, out / EVALUATED_FILE, progress)
        write_bytes(out / TABLE_FILE, bench.table(rows, evaluated).to_json().encode())
    if reason is not None:
        progress.say(reason)
    return bench.policies(rows, reason).write(out / POLICIES_FILE)


def _unfit(device: PolicyDevice) -> str | None:
    """The reason why no SubNet of a device gets thresholds; None if they may get them."""
    name = device.target.name
    if device.precision == "int8":
        return f"exits: device.{name} runs in int8, where exits answer otherwise than they were tested; no thresholds"
    if device.batch > 1:
        leave = "samples leave one by one; allowed: 1, in a run of its own"
        return f"exits: device.{name}.batch={device.batch}: {leave}; no thresholds"
    return None
