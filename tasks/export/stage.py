"""ONNX, NCNN and torch files of every chosen SubNet, checked and measured on the device.

Each file has its own BatchNorm statistics, folded into its weights. Formats that the device does not run are checked in a local
runtime. A file whose outputs differ from torch is not kept.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tailor_ir
from profiling_agents.client import AgentClient, ModelTooLargeError, RunError
from profiling_agents.messages import Capabilities, Measurement
from tailor_ir import Config, SuperNet
from tasks.base.artifacts import NO_STORE, SubNetLines, Workspace, append_line, read_lines, write_bytes
from tasks.base.errors import UserError
from tasks.base.progress import Progress
from tasks.base.schemas.exports import (
    AS_GIVEN,
    EXPORTS_FILE,
    LABELLED,
    Card,
    ExportedFile,
    ExportedWinner,
    Exports,
    MissedWinner,
)
from tasks.base.schemas.placed import OWN_CHOICES, ChosenImplementations
from tasks.base.schemas.stored import StageResult
from tasks.base.schemas.winners import FRONT_FILE, Front, Winner
from tasks.data.dataset import describe
from tasks.data.problems import CLASSIFICATION, other_metric
from tasks.evaluation.ncnn.conversion import ConversionError
from tasks.evaluation.ncnn.files import require_masks
from tasks.evaluation.quantise import Int8
from tasks.evaluation.subnets import Accuracy, EvaluationData, accuracies, accuracy, accuracy_lines
from tasks.evaluation.subnets.record import CONFUSIONS_FILE, append_confusions, graded
from tasks.evaluation.unrolling import kept_states
from tasks.exits.policies import SubnetPolicy
from tasks.export import bundles, replacing
from tasks.export.adapted import Adapted, adapted_winners, read_side_files
from tasks.export.card import (
    UNKNOWN_PROVENANCE,
    Provenance,
    architecture,
    card_device,
    card_files,
    preparation,
    used_engine,
    write_vocabulary,
)
from tasks.export.chains import ChainWriter, require_exits
from tasks.export.files import SUFFIXES, Builder, Images, Made, in_planned_order, references
from tasks.export.running import TimedSubNet, brought, examples
from tasks.export.settings import FileFormat, Settings
from tasks.measuring.subnets import SubNetMeter
from tasks.search import read_front
from tasks.search.baselines.subnets import measure_baseline

DONE_FILE = "exports.jsonl"
MEASURED_FILE = "winners_measured.jsonl"
EVALUATED_FILE = "winners_evaluated_{}.jsonl"
Accuracies = dict[str, dict[str, Accuracy]]
"""Accuracies by split and SubNet (digest)."""
ROUNDS = 2
"""Fewest rounds that show how a disturbed device slows small SubNets compared with the largest (`tasks.measuring.jobs`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """The winners of a search on one device, and how they are exported.

    supernet: its folder. search: the folder with `front.json`. data: split -> images to evaluate accuracy on; those of the
    first split check the files. batch: samples of an ONNX file. substitutes: for missed budgets; None: winners stay. policies:
    of SubNets with thresholds. elsewhere: digests of other devices' winners. contents: of the bundle. given: the folder of the
    SuperNet before training if the network came with weights, which its largest SubNet then has; else None.
    """

    settings: Settings
    supernet: Path
    search: Path
    data: Mapping[str, EvaluationData]
    batch: int = 1
    provenance: Provenance = UNKNOWN_PROVENANCE
    substitutes: Callable[[], replacing.Substitutes] | None = None
    implementations: ChosenImplementations = OWN_CHOICES
    policies: Sequence[SubnetPolicy] = ()
    elsewhere: Collection[str] = ()
    contents: bundles.BundleContents = field(default_factory=bundles.BundleContents)
    given: Path | None = None

    @property
    def check_data(self) -> EvaluationData:
        """The images that check the files: those of the first split."""
        return next(iter(self.data.values()))


def run(request: ExportRequest, client: AgentClient, workspace: Workspace) -> StageResult:
    """Export every winner of `search/front.json`; writes and returns `exports.json`, beside `confusions.jsonl`.

    The caller holds the device's lease. Winners are always timed here, others come from the store. UserError: side files.
    """
    settings, out, progress, store = request.settings, workspace.out, workspace.progress, workspace.store
    front, device = read_front(request.search / FRONT_FILE), client.capabilities()
    net = tailor_ir.load(request.supernet, batch=request.batch)
    _require(request, net, device)
    adapted = adapted_winners(
        read_side_files(settings.adapted), net, front.winners, request.elsewhere, request.check_data
    )
    meter = SubNetMeter(net, client, settings.measure, settings.limits, ROUNDS, request.implementations)
    lines = meter.lines(store, request.supernet, out / MEASURED_FILE, progress, anew=True)
    with ExitStack() as stack:
        builder = Builder(
            settings=settings, net=net, client=client, agents=stack, data=request.data, progress=progress,
            implementations=request.implementations, adapted=adapted,
        )  # fmt: skip
        measure = partial(_measured, builder, meter, lines, progress)
        rows, measured = replacing.replaced(front.winners, request.substitutes, settings.replacements, measure, adapted)
        evaluate = partial(_evaluated, request, net, workspace, adapted)
        others, accuracy = _judged(settings, front, rows, measured, measure, evaluate)
        # a SubNet that has adapted since gives other answers than when its policy was measured
        policies = {row.digest: row for row in request.policies if row.digest not in adapted}
        exporter = Exporter(request=request, builder=builder, accuracy=accuracy, out=out, policies=policies)
        done = exporter.export_all(_by_digest(*rows, *others), measured, progress)
        cards = tuple(done.values())
        as_given = exporter.export_given(front, measured, progress)
    done |= {row.digest: card for row, card in as_given}
    if not settings.keep_winners:
        others = (*others, *(row for row, _ in as_given if replacing.is_within_limits(front)))
        rows = replacing.best_measured(rows, done, exporter.kept, others)
    precision = Int8(settings.quantise) if device.precision == "int8" else None
    images = {split: one.in_precision(precision) for split, one in request.data.items() if split != LABELLED}
    return Exports(
        device=device,
        winners=tuple(_winner(before, row, done, measured) for before, row in zip(front.winners, rows, strict=True)),
        subnets=tuple(done.values()),
        largest=replacing.largest_of(measured),
        **_bundle(exporter, cards, device, workspace),
        baseline=measure_baseline(front.baseline, meter, request.supernet, images, out, progress, store),
        uncertainty=front.uncertainty,
    ).write(out / EXPORTS_FILE)


def _judged(
    settings: Settings,
    front: Front,
    rows: Sequence[Winner],
    measured: dict[str, Measurement],
    measure: Callable[[Mapping[str, Config]], dict[str, Measurement]],
    evaluate: Callable[[Mapping[str, Winner]], Accuracies],
) -> tuple[tuple[Winner, ...], Accuracies]:
    """The largest SubNet, if it is better for a budget, to be exported beside the SubNets of `rows`; and all accuracies.

    Its measurement goes into `measured`.
    """
    others = () if settings.keep_winners else replacing.whole_network(front, rows, measured[replacing.LARGEST].p50_ms)
    accuracy = evaluate(_by_digest(*rows, *others))
    of_first = next(iter(accuracy.values()))
    others = replacing.better(others, rows, {digest: one.share for digest, one in of_first.items()})
    if others:
        every = _by_digest(*front.winners, *rows, *others)
        measured |= measure({digest: row.config for digest, row in every.items()})
    return others, accuracy


def _by_digest(*rows: Winner) -> dict[str, Winner]:
    """Each SubNet once, even if it wins several budgets."""
    return {row.digest: row for row in rows}


def _require(request: ExportRequest, net: SuperNet, device: Capabilities) -> None:
    """UserError for settings that this network or this device does not support."""
    if device.backend == "ncnn":
        require_masks(device.version, request.implementations.operators.values())
    if request.settings.bundle and len(net.structure.graph.outputs) > 1:
        got = f"true for a network with {len(net.structure.graph.outputs)} outputs"
        raise UserError("export.bundle", got, allowed="false: bundles have one output so far, files all of them")
    require_exits(request.settings, net)
    bundles.require_blocks(request.settings, net)
    bundles.require_adaptable(request.settings, net)


def _measured(
    builder: Builder, meter: SubNetMeter, lines: SubNetLines, progress: Progress, configs: Mapping[str, Config]
) -> dict[str, Measurement]:
    """Measurements of SubNets as their files run, by digest."""
    subjects = replacing.subjects_of(builder, configs)
    found = meter.measure_all(list(subjects.values()), lines, progress, "measure winners")
    return dict(zip(subjects, found, strict=True))


def _bundle(exporter: "Exporter", cards: Sequence[Card], device: Capabilities, workspace: Workspace) -> dict[str, Any]:
    """The bundle as a field; {} if none is requested."""
    request, builder = exporter.request, exporter.builder
    if not request.settings.bundle:
        return {}
    bundle = bundles.BundleRequest(
        settings=request.settings,
        net=builder.net,
        cards=cards,
        images=request.check_data,
        device=device,
        policies=exporter.policies,
        accuracies=_replaced(request, builder.net, workspace),
        adapted=builder.adapted,
        contents=request.contents,
    )
    return {"bundle": bundles.write_bundle(bundle, workspace)}


def _replaced(request: ExportRequest, net: SuperNet, workspace: Workspace) -> dict[str, dict[str, Accuracy]]:
    """Accuracies on the first split, by digest, of the largest SubNet and of SubNets with a single alternative."""
    if not request.settings.blocks:
        return {}
    split, images = next(iter(request.data.items()))
    configs = [net.max_config, *bundles.single_replacements(net).values()]
    lines = _accuracy_lines(request, split, workspace)
    found = accuracies(net, configs, images, lines, workspace.progress, "evaluate alternatives")
    return {split: dict(zip(map(net.space.digest, configs), found, strict=True))}


def _evaluated(
    request: ExportRequest, net: SuperNet, workspace: Workspace, adapted: Adapted, winners: Mapping[str, Winner]
) -> Accuracies:
    """Accuracies by split and winner (digest); results in the store or in the workspace are not evaluated again.

    The store holds SubNets before adaptation; adapted ones are evaluated here.
    """
    own = {digest: one.accuracies(net, request.data) for digest, one in adapted.items() if digest in winners}
    configs = {digest: row.config for digest, row in winners.items() if digest not in own}
    found: dict[str, dict[str, Accuracy]] = {}
    for split, images in request.data.items():
        lines, name = _accuracy_lines(request, split, workspace), f"evaluate winners, {split}"
        of_split = accuracies(net, list(configs.values()), images, lines, workspace.progress, name)
        found[split] = dict(zip(configs, of_split, strict=True))
        found[split] |= {digest: of_splits[split] for digest, of_splits in own.items()}
    return found


def _accuracy_lines(request: ExportRequest, split: str, workspace: Workspace) -> SubNetLines:
    """Accuracies of SubNets on a split: lines in the stage's folder, and in the store."""
    own, images = workspace.out / EVALUATED_FILE.format(split), request.data[split]
    store = NO_STORE if split == LABELLED else workspace.store  # whose key has no labelled samples
    return accuracy_lines(store, request.supernet, split, images, own, workspace.progress)


def _is_whole(card: Card, out: Path) -> bool:
    """Whether all files of an exported SubNet exist unchanged."""
    files = {name: digest for file in card.files.values() for name, digest in file.written.items()}
    files |= {f"{card.digest}{suffix}": _sha256(content) for suffix, content in card_files(card).items()}
    return all((out / name).is_file() and _sha256((out / name).read_bytes()) == known for name, known in files.items())


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _states(images: EvaluationData, net: SuperNet) -> dict[str, Any]:
    """The states that are inputs and outputs of exported files, as a field of cards; {} if there are none."""
    kept = kept_states(net.structure.graph, images.dataset.settings.network)
    return {"states": kept} if kept else {}


def _winner(
    before: Winner, chosen: Winner, cards: Mapping[str, Card], measured: Mapping[str, Measurement]
) -> ExportedWinner:
    """Predicted and measured values of a budget's winner; `before`: the original winner, recorded if it was replaced."""
    exported = cards[chosen.digest]
    measured_ms, missed_ms = exported.latency.p50_ms, measured[before.digest].p50_ms
    changed: dict[str, Any] = {}
    if chosen.digest != before.digest:
        card = cards.get(before.digest)
        missed = MissedWinner(
            digest=before.digest,
            predicted_ms=before.predicted_ms,
            measured_ms=missed_ms,
            accuracy=card.accuracy if card and missed_ms is not None and missed_ms <= before.budget_ms else None,
        )
        changed = {"replaces": missed, "subnet": replacing.as_predicted(chosen)}
    return ExportedWinner(
        digest=chosen.digest,
        budget_ms=chosen.budget_ms,
        predicted_ms=chosen.predicted_ms,
        measured_ms=measured_ms,
        within_budget=measured_ms is not None and measured_ms <= chosen.budget_ms,
        predicted_accuracy=chosen.predicted_accuracy,
        accuracy=exported.accuracy,
        files_ok=all(file.state == "ok" for file in exported.files.values()),
        **changed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Exports single SubNets into the folder `out`.

    accuracy: by split and SubNet (digest). policies: of SubNets with thresholds (digest).
    """

    request: ExportRequest
    builder: Builder
    accuracy: Mapping[str, Mapping[str, Accuracy]]
    out: Path
    policies: Mapping[str, SubnetPolicy] = field(default_factory=dict)

    @property
    def kept(self) -> set[str]:
        """SubNets (digests) that stay winners of their budgets: those that have adapted, or have thresholds."""
        return {*self.builder.adapted, *(digest for digest, row in self.policies.items() if row.thresholds)}

    def export_all(
        self, winners: Mapping[str, Winner], measured: Mapping[str, Measurement], progress: Progress
    ) -> dict[str, Card]:
        """Cards by digest; SubNets with intact files from an earlier call are not exported again."""
        known = (Card.model_validate(line) for line in read_lines(self.out / DONE_FILE))
        done = {card.digest: card for card in known if card.digest in winners and _is_whole(card, self.out)}
        todo = [digest for digest in winners if digest not in done]
        write_vocabulary(self.request.check_data.dataset.scaling.vocabulary, self.out)
        with progress.bar("export", len(winners), len(done)) as bar:
            for digest in todo:
                done[digest] = self.export(winners[digest], replacing.timed(measured, digest))
                append_line(self.out / DONE_FILE, done[digest].to_json())
                bar.advance()
        return {digest: done[digest] for digest in winners}

    def export_given(
        self, front: Front, measured: Mapping[str, Measurement], progress: Progress
    ) -> list[tuple[Winner, Card]]:
        """The network as it was given, if it was, as a winner without a budget of its own, and its card.

        The files are those of the largest SubNet before training, and so are latencies: these do not depend on weights.
        """
        if self.request.given is None:
            return []
        net = tailor_ir.load(self.request.given, batch=self.request.batch)
        found = {split: {AS_GIVEN: accuracy(net, net.max_config, one)} for split, one in self.request.data.items()}
        share = next(iter(found.values()))[AS_GIVEN].share
        own = {"digest": AS_GIVEN, "config": net.max_config, "predicted_accuracy": share, "predicted_score": share}
        row = Winner.model_validate({**front.largest.to_json(), **own, "budget_ms": front.largest.predicted_ms})
        timed = replacing.timed(measured, replacing.LARGEST)
        times = {AS_GIVEN: timed.chosen} | (
            {} if timed.own is None else {f"{AS_GIVEN} {replacing.OWN_CHOICES_OF}": timed.own}
        )
        builder = replace(self.builder, net=net, adapted={}, _quantised={})
        exporter = replace(self, builder=builder, accuracy=found, policies={})
        return [(row, exporter.export_all({AS_GIVEN: row}, times, progress)[AS_GIVEN])]

    def export(self, winner: Winner, timed: TimedSubNet) -> Card:
        """Write the files of one SubNet, check them, and write its model card, which is returned.

        On an int8 device the card has the accuracy of the int8 file; files of other formats state their own.
        """
        images, config = self.request.check_data, winner.config
        statistics, adapted = self.builder.tensors(config), self.builder.adapted.get(winner.digest)
        as_adapted = None if adapted is None else adapted.subnet
        self.builder.net.check_forms(config, statistics, f"stage export, SubNet {winner.digest}", as_adapted)
        module = self.builder.net.build(config, statistics).eval()
        reference = module if as_adapted is None else as_adapted
        inputs, expected = references(self.builder.net, reference, config, images, self.builder.settings.check_images)
        card = self._card(winner, timed.chosen, images, expected)
        files: dict[str, ExportedFile] = {}
        for name in self.builder.formats:
            try:
                made = self.builder.make(name, card, statistics, module)
                if name == "onnx" and self.builder.settings.planned_memory:
                    device, limits = self.builder.client.capabilities(), self.builder.settings.limits
                    made = in_planned_order(self.builder.net, card, made, inputs, device, limits)
                file = self._file(name, card.digest, made, inputs, expected)
                files[name] = self._with_run(file, name, card, made, timed)
            except (ConversionError, ModelTooLargeError, RunError) as error:
                files[name] = ExportedFile(state="failed", reason=str(error))
        files |= ChainWriter(self.builder, images, self.out, self.policies).write(card, inputs)
        if (found := self.accuracy.get("test")) is not None:
            confusion = found[card.digest].confusion
            append_confusions(self.out / CONFUSIONS_FILE, card.digest, card.classes, confusion)
        own = files["onnx_int8"].int8 if self.builder.in_int8 else None
        card = card.model_copy(update={"files": files, **({} if own is None else {"accuracy": own.accuracy})})
        for suffix, content in card_files(card).items():
            write_bytes(self.out / f"{card.digest}{suffix}", content)
        return card

    def _card(self, winner: Winner, measured: Measurement, images: EvaluationData, outputs: Images) -> Card:
        """The card without its files. outputs: raw outputs for some of the images."""
        config, data = winner.config, describe(images.dataset)
        shapes = self.builder.net.input_shapes(config)
        first = next(iter(shapes.values()))
        card = Card(
            digest=winner.digest,
            config=config,
            batch=self.builder.net.batch,
            input_shape=first,
            preparation=preparation(data, shapes),
            classes=data.class_names,
            macs=self.builder.net.macs(config),
            parameters=self.builder.net.parameters(config),
            architecture=architecture(self.builder.net, config),
            accuracy={split: found[winner.digest].share for split, found in self.accuracy.items()},
            samples={
                split: found[winner.digest].total for split, found in self.accuracy.items() if images.problem.is_mean
            },
            **graded(*(one.each for found in self.accuracy.values() if (one := found[winner.digest]).scores)),
            files={},
            predicted_ms=winner.predicted_ms,
            latency=replacing.latency_of(measured),
            device=card_device(self.builder.client.capabilities()),
            engine=used_engine(self.request.provenance.engine),
            made_from=self.request.provenance.origin,
        )
        if winner.digest in self.builder.adapted:
            card = card.model_copy(update={"adapted": self.builder.adapted[winner.digest].described})
        problem = images.problem
        known: dict[str, Any] = _states(images, self.builder.net)
        if (metric := other_metric(problem)) is not None:
            known["metric"] = metric
        if problem.name != CLASSIFICATION.name:
            known["problem"] = problem.name
            if (decoding := problem.decoding(outputs, (first[-2], first[-1]))) is not None:
                known["decoding"] = decoding
        return card.model_copy(update=known)

    def _file(self, name: FileFormat, digest: str, made: Made, inputs: Images, expected: Images) -> ExportedFile:
        """Check one format against torch (int8 against a local run), and keep its files if they agree."""
        got, whom = made.outputs(inputs), "torch"
        if made.reference is not None:
            expected, whom = made.reference(inputs), "onnxruntime on this machine"
        repeated = np.tile(expected, (len(got) // len(expected), *(1,) * (expected.ndim - 1)))
        difference = float(np.abs(got - repeated).max() / np.abs(expected).max())
        outputs = () if made.run is None else made.run.outputs
        rounding = [float(np.finfo(one.type).eps) for one in outputs if "float" in one.type]
        tolerance = max([self.builder.settings.tolerance.of(made.precision), *rounding])
        checked: dict[str, Any] = {
            "relative_difference": difference if math.isfinite(difference) else None,
            "tolerance": tolerance,
            "images": len(inputs),
            "on_device": made.on_device,
            "runtime": made.runtime,
            "precision": made.precision,
            **({"int8": made.int8} if made.int8 else {}),
            **({"memory": made.memory} if made.memory else {}),
        }
        if not difference <= tolerance:
            reason = f"outputs differ from {whom} by {difference:.3g}; allowed in {made.precision}: {tolerance:g}"
            return ExportedFile(state="failed", reason=reason, **checked)
        contents = {f"{digest}{suffix}": part for suffix, part in zip(SUFFIXES[name], made.contents, strict=True)}
        for file, content in contents.items():
            write_bytes(self.out / file, content)
        digests = {file: _sha256(content) for file, content in contents.items()}
        return ExportedFile(state="ok", sha256=digests, bytes=sum(map(len, made.contents)), **checked)

    def _with_run(
        self, file: ExportedFile, name: FileFormat, card: Card, made: Made, timed: TimedSubNet
    ) -> ExportedFile:
        """Record how a file runs and the gains of its settings, and write example programs."""
        if made.run is None or file.state != "ok":
            return file
        gains = brought(made.run, self.request.provenance.engine, timed) if made.on_device else ()
        of_int8 = {"precision": made.precision} if made.int8 else {}
        of_order = {} if made.memory is None else made.memory.session_options
        settings = {**made.run.settings, **of_order}
        run = made.run.model_copy(update={"brought": gains, "settings": settings, **of_int8})
        stem = f"{card.digest}{SUFFIXES[name][0].removesuffix('.param')}"
        programs = examples(run, name.partition("_")[0], on_device=made.on_device, prepared=card.preparation)
        contents = {f"{stem}{suffix}": content.encode() for suffix, content in programs.items()}
        for path, content in contents.items():
            write_bytes(self.out / path, content)
        digests = {path: _sha256(content) for path, content in contents.items()}
        return file.model_copy(update={"run": run, "examples": digests})
