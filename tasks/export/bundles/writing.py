"""A bundle's folder: ONNX files that store common weights once, ncnn files if the device runs them, and the manifest.

Each SubNet computes the same as its own files. ncnn nets cannot share weights: each has its own.
"""

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Protocol

import numpy as np
import onnxruntime

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle import bundles
from adaptive_runtime.bundle.chains import ChainFormat, ChainTensor, ImagePreparation, session_options
from adaptive_runtime.bundle.chains.runs import RUNTIMES
from adaptive_runtime.model.variants import BundleVariants
from adaptive_runtime.policy import parse_rules
from adaptive_runtime.samples.inputs import input_forms
from adaptive_runtime.weights import NormStatistics
from profiling_agents.messages import Capabilities, Precision
from tailor_ir import Choice, Statistics, SuperNet
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.base.artifacts import Workspace, write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.exports import Bundle, Card, FileTensor
from tasks.data.dataset import describe
from tasks.data.problems import CLASSIFICATION, require
from tasks.evaluation.subnets import Accuracy, EvaluationData
from tasks.exits.policies import SubnetPolicy
from tasks.export.adapted import Adapted, own_tensors
from tasks.export.bundles import extras
from tasks.export.bundles.formats import WITH_CHAIN, FurtherFormat, chain_input, chain_tensor, run_onnx, subnet_row
from tasks.export.card import card_device, preparation, write_vocabulary
from tasks.export.chain_files import chain_statistics
from tasks.export.chains import FORMATS, BundledChain, bundle_chain, chain_exits, copy_ncnn_chain
from tasks.export.files import Images, in_batches, references
from tasks.export.onnx_files import tell
from tasks.export.settings import BUNDLE_FOLDER, Settings

ON_CPU = ("cpu", "CPUExecutionProvider")


class PlacementWriter(Protocol):
    """Splits SubNets of a bundle over devices (`tasks.placement.bundled`)."""

    def write(
        self,
        net: SuperNet,
        config: Mapping[str, Choice],
        statistics: Statistics | None,
        folder: Path,
        images: EvaluationData,
    ) -> bundles.BundledPlacement | None:
        """Write the files of a SubNet into a bundle's folder; None: it is not split."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleContents:
    """Contents of a bundle beside its SubNets in the formats of its device.

    rules: by which the device chooses SubNets. formats: further formats of the SubNets. placements: of SubNets over devices.
    """

    rules: str | None = None
    formats: Sequence[FurtherFormat] = ()
    placements: PlacementWriter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """The SubNets of a bundle by their model cards, and their device.

    images: for statistics and checks. policies: by digest, of SubNets with exits. accuracies: by split and digest, for block
    segments. adapted: SubNets in adapted form.
    """

    settings: Settings
    net: SuperNet
    cards: Sequence[Card]
    images: EvaluationData
    device: Capabilities
    policies: Mapping[str, SubnetPolicy] = field(default_factory=dict)
    accuracies: Mapping[str, Mapping[str, Accuracy]] = field(default_factory=dict)
    adapted: Adapted = field(default_factory=dict)
    contents: BundleContents = BundleContents()


def write_bundle(request: BundleRequest, workspace: Workspace) -> Bundle:
    """Write the folder `bundle` in the stage's folder, with every SubNet checked against torch.

    `bytes_alone`: of the ONNX files, if these were exported. The folder appears whole, or not at all. UserError: the key cannot
    be read, or rules need unknown values of SubNets.
    """
    settings, cards, out, progress = request.settings, request.cards, workspace.out, workspace.progress
    _check(settings, request.images)
    final, partial, key = out / BUNDLE_FOLDER, out / f"{BUNDLE_FOLDER}.partial", _key(settings)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    writer = _Writer(request=request, out=out, folder=partial)
    with progress.bar("bundle", len(cards)) as bar:
        rows = writer.write_all(cards, bar.advance)
    worst, difference = writer.worst(rows)
    allowed = settings.tolerance.fp32
    if difference > allowed:
        shutil.rmtree(partial)
        reason = f"SubNet {worst}: outputs differ from torch by {difference}; allowed in fp32: {allowed:g}"
        return Bundle(state="failed", reason=reason)
    content = writer.manifest(cards, rows).to_json().encode()
    write_bytes(partial / bundles.BUNDLE_FILE, content)
    if key is not None:
        write_bytes(partial / bundles.SIGNATURE_FILE, f"{bundles.signature(content, key)}\n".encode())
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    alone = [card.files["onnx"].bytes if "onnx" in card.files else None for card in cards]
    return Bundle(
        state="ok",
        folder=BUNDLE_FOLDER,
        bytes=sum(file.stat().st_size for file in final.iterdir()),
        bytes_alone=None if None in alone else sum(filter(None, alone)),
        relative_difference=difference,
        tolerance=allowed,
    )


def _check(settings: Settings, images: EvaluationData) -> None:
    """UserError for options that bundles of this learning problem, or of such samples, cannot have."""
    for option, asked in (("adaptable", settings.adaptable), ("blocks", settings.blocks)):
        if asked:
            require(images.problem, option, f"export.{option}=true", f"set export.{option}=false")
            images.dataset.form.require(option, f"export.{option}=true", f"set export.{option}=false")


def _key(settings: Settings) -> bytes | None:
    try:
        return None if settings.bundle_key is None else bundles.read_key(settings.bundle_key)
    except AdaptiveError as error:
        raise UserError("export.bundle_key", str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writer:
    """Writes the files of a bundle into `folder`. out: the stage's folder. broken: SubNets whose outputs are not finite.

    of_blocks: the largest difference of block chains from torch, if these are written.
    """

    request: BundleRequest
    out: Path
    folder: Path
    broken: list[str] = field(default_factory=list)
    of_blocks: dict[str, float] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return self.request.settings

    @property
    def net(self) -> SuperNet:
        return self.request.net

    @property
    def images(self) -> EvaluationData:
        return self.request.images

    def write_all(self, cards: Sequence[Card], advance: Callable[[], None]) -> list[bundles.BundledSubNet]:
        """Write all files but the manifest; returns the rows of the SubNets."""
        net = self.net
        statistics: dict[
            str, Statistics
        ] = {}  # a SubNet's own tensors, including BatchNorm statistics; for a chain, also those of its heads
        for card in cards:
            own = own_tensors(net, dict(card.config), self.images, self.request.adapted)
            statistics[card.digest] = chain_statistics(net, card.config, chain_exits(card), self.images) | own
        chains = {card.digest: exits for card in cards if (exits := chain_exits(card))}
        blocks = None
        if self.settings.blocks:  # statistics of each alternative by itself; the network's own layers keep theirs
            images = self.images.calibration(net.input_size(net.max_config))
            blocks = net.max_config, net.recalibrate_alternatives(images)
        subnets = {card.digest: (card.config, statistics[card.digest]) for card in cards}
        observed_images = self.settings.adaptable_images if self.settings.adaptable else None
        net.export_together(subnets, self.folder, chains, blocks, observed_images)
        if blocks is not None:
            self._write_blocks(blocks[1])
        write_vocabulary(self.images.dataset.scaling.vocabulary, self.folder)
        if self.settings.adaptable:
            prepared = cards[0].preparation
            assert isinstance(prepared, ImagePreparation), "weights adapt to images alone"
            extras.write_source_images(self.images, prepared, self.folder)
        rows, sampled = [], []
        for card in cards:
            adapted = self.request.adapted.get(card.digest)
            module = net.build(card.config, statistics[card.digest]).eval() if adapted is None else adapted.subnet
            inputs, expected = references(net, module, card.config, self.images, self.settings.check_images)
            rows.append(self._row(card, statistics[card.digest], inputs, expected))
            sampled.append(extras.SampledSubNet(card, statistics[card.digest], inputs, chains.get(card.digest, ())))
            advance()
        write_bytes(self.folder / bundles.CALIBRATION_FILE, extras.calibration_sample(net, sampled).to_bytes())
        return rows

    def _write_blocks(self, statistics: Statistics) -> None:
        net, config = self.net, self.net.max_config
        module = net.build(config, statistics)
        inputs, _ = references(net, module, config, self.images, self.settings.check_images)
        run = self._run("onnx").settings
        prepared = preparation(describe(self.images.dataset), net.input_shapes(config))
        assert isinstance(prepared, ImagePreparation), "blocks are searched with images alone"
        found = extras.write_blocks(net, statistics, prepared, self.folder, inputs, run, self.request.accuracies)
        self.of_blocks["chains of blocks"] = found if math.isfinite(found) else math.inf

    def worst(self, rows: Sequence[bundles.BundledSubNet]) -> tuple[str, float]:
        """The SubNet whose outputs differ most from torch, by digest, and the difference; infinite if outputs are not
        finite.
        """
        differences = {row.digest: row.nets["onnx"].relative_difference for row in rows if "onnx" in row.nets}
        differences |= {**dict.fromkeys(self.broken, math.inf), **self.of_blocks}
        return max(differences.items(), key=lambda one: one[1])

    def manifest(self, cards: Sequence[Card], rows: Sequence[bundles.BundledSubNet]) -> bundles.BundleManifest:
        """The manifest of the files in the folder."""
        errors = [abs(row.predicted_ms / row.latency.p50_ms - 1) for row in rows if row.latency is not None]
        formats, rules = {name for row in rows for name in row.nets}, self.request.contents.rules
        runs: dict[bundles.BundleFormat, bundles.BundleRun] = {name: self._run(name) for name in FORMATS}
        runs |= {one.form: one.run(self.settings.tolerance) for one in self.request.contents.formats}
        manifest = bundles.BundleManifest(
            batch=self.net.batch,
            files={
                file.name: bundles.FileFacts(sha256=sha256_of(file), bytes=file.stat().st_size)
                for file in sorted(self.folder.iterdir())
            },
            subnets=tuple(rows),
            runs={name: run for name, run in runs.items() if name in formats},
            classes=cards[0].classes,
            device=card_device(self.request.device),
            made_from=cards[0].made_from,
            predicted_error=mean(errors) if errors else None,
            calibration=bundles.CALIBRATION_FILE,
            source_images=extras.SOURCE_IMAGES_FILE if self.settings.adaptable else None,
            policy=rules,
            problem=None if self.images.problem.name == CLASSIFICATION.name else self.images.problem.name,
        )
        if rules is not None:
            try:
                parse_rules(rules).check(BundleVariants.of(manifest, *manifest.known_formats).table)
            except AdaptiveError as error:
                raise UserError("runtime.rules", str(error)) from error
        return manifest

    def _row(self, card: Card, statistics: Statistics, inputs: Images, expected: Images) -> bundles.BundledSubNet:
        chains: dict[ChainFormat, BundledChain] = {}
        if chain_exits(card):
            settings = self._run("onnx").settings
            chains["onnx"] = bundle_chain(self.net, card, statistics, self.out, self.folder, inputs, settings)
        nets: dict[bundles.BundleFormat, bundles.BundledNet] = {
            "onnx": self._onnx(card, inputs, expected, chains.get("onnx"))
        }
        if "ncnn" in self.request.device.formats and (own := card.files.get("ncnn")) is not None and own.state == "ok":
            if (chain := copy_ncnn_chain(card, self.out, self.folder)) is not None:
                chains["ncnn"] = chain
            nets["ncnn"] = self._ncnn(card, chains.get("ncnn"))
        best = chains.get("ncnn" if "ncnn" in nets else "onnx")
        nets |= self._further(card, nets, chains.get("ncnn"), (inputs, expected))
        policy = self.request.policies.get(card.digest)
        manifest, thresholds = (None, None) if best is None else (best.manifest, best.thresholds)
        row = subnet_row(self.net, card, nets, manifest, thresholds, policy)
        if (placements := self.request.contents.placements) is None:
            return row
        placed = placements.write(self.net, card.config, statistics, self.folder, self.images)
        return row.model_copy(update={"placement": placed})

    def _further(
        self,
        card: Card,
        nets: Mapping[bundles.BundleFormat, bundles.BundledNet],
        chain: BundledChain | None,
        checked: tuple[Images, Images],
    ) -> dict[bundles.BundleFormat, bundles.BundledNet]:
        """The SubNet in further formats. chain: of ncnn, if the device runs it."""
        found: dict[bundles.BundleFormat, bundles.BundledNet] = {}
        for one in self.request.contents.formats:
            if card.digest not in one.rows:
                continue
            if one.form in nets:
                found[one.form] = nets[one.form].model_copy(update={"figures": one.figures(card)})
                continue
            if one.form in WITH_CHAIN and chain is None:
                chain = copy_ncnn_chain(card, self.out, self.folder)
            net = one.net(card, self.out, self.folder, chain, checked, self.net.batch)
            found |= {} if net is None else {one.form: net}
        return found

    def _onnx(self, card: Card, inputs: Images, expected: Images, chain: BundledChain | None) -> bundles.BundledNet:
        """Write the facts into the file, and compare it with torch."""
        file = self.folder / f"{card.digest}.onnx"
        file.write_bytes(tell(file.read_bytes(), card))
        options = session_options(self._run("onnx").settings)
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        (given,) = session.get_outputs()
        got = in_batches(inputs, self.net.batch, lambda x: run_onnx(session, x))
        difference = float(np.abs(got - expected).max() / np.abs(expected).max())
        difference = max(difference, 0.0 if chain is None else chain.difference)
        adaptable, of_adaptable = self._adaptable(card, inputs, expected)
        difference = max(difference, of_adaptable)
        if not math.isfinite(difference):
            self.broken.append(card.digest)
        return bundles.BundledNet(
            files=(file.name, WEIGHTS_FILE),
            input=chain_input(
                FileTensor(name=one.name, shape=tuple(one.shape), type=form)
                for one, (form, _) in zip(session.get_inputs(), input_forms(inputs), strict=True)
            ),
            output=ChainTensor(name=given.name, shape=tuple(given.shape)),
            chain=None if chain is None else chain.name,
            chain_files=() if chain is None else tuple(chain.manifest.written()),
            relative_difference=difference if math.isfinite(difference) else 0.0,
            adaptable=adaptable,
        )

    def _adaptable(self, card: Card, inputs: Images, expected: Images) -> tuple[bundles.AdaptableNet | None, float]:
        """Files by which a SubNet adapts, and the difference from torch of its file with statistics."""
        if not self.settings.adaptable:
            return None, 0.0
        height, width = card.input_shape[-2:]
        usual, settings = extras.usual_images(self.images, (height, width)), self._run("onnx").settings
        found = extras.adaptable_net(card.digest, self.settings.adaptable_images, self.folder, usual, settings)
        if found is None:
            return None, 0.0
        source = bundles.AdaptationSource.from_bytes((self.folder / found.source).read_bytes(), found.source)
        statistics = NormStatistics(source.mean, source.variance)
        got = extras.observed(found, self.folder, settings).look(inputs, statistics).logits_BK
        return found, float(np.abs(got - expected).max() / np.abs(expected).max())

    def _ncnn(self, card: Card, chain: BundledChain | None) -> bundles.BundledNet:
        """Copy the files that the stage has exported and checked."""
        own = card.files["ncnn"]
        assert own.run is not None
        assert own.relative_difference is not None
        names = tuple(f"{card.digest}.ncnn.{end}" for end in ("param", "bin"))
        for name in names:
            shutil.copyfile(self.out / name, self.folder / name)
        return bundles.BundledNet(
            files=names,
            input=chain_input(own.run.inputs),
            output=chain_tensor(own.run.outputs[0]),
            chain=None if chain is None else chain.name,
            chain_files=() if chain is None else tuple(chain.manifest.written()),
            relative_difference=max(own.relative_difference, 0.0 if chain is None else chain.difference),
        )

    def _run(self, name: ChainFormat) -> bundles.BundleRun:
        """The run of files in one format: as on the device, or, if it does not take them, with as many threads."""
        device = self.request.device
        measured = device.backend == RUNTIMES[name] and device.provider in ON_CPU
        settings = device.engine.applied(device.settings, device.engine_options)
        precision: Precision = device.precision if measured and device.precision != "int8" else "fp32"
        return bundles.BundleRun(
            runtime=RUNTIMES[name],
            version=device.version if measured else onnxruntime.__version__,
            threads=device.threads,
            precision=precision,
            settings=settings if measured else {"intra_op_num_threads": device.threads},
            measured=measured,
            tolerance=self.settings.tolerance.of(precision),
        )
