"""Chains: a SubNet with exits as segments in ONNX files, or as one net of ncnn; checked, timed, described by a manifest.

A host program follows the manifest (`adaptive_runtime.bundle.chains`). Inside a bundle, the ONNX segments of a chain refer to
the bundle's shared weights.
"""

import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle import chains
from adaptive_runtime.exits import Thresholds
from profiling_agents.client import ModelJob, ModelTooLargeError, RunError
from profiling_agents.messages import Precision, Setting
from tailor_ir import Segment, Statistics, SuperNet
from tailor_ir.subnets.shared_weights import WEIGHTS_FILE
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.exports import Card, ExportedFile, ExportedSegment, FileTensor
from tasks.evaluation.ncnn.conversion import ConversionError
from tasks.evaluation.subnets import EvaluationData
from tasks.exits.policies import SubnetPolicy
from tasks.export import chain_files
from tasks.export.files import Builder, Images
from tasks.export.running import run_of
from tasks.export.settings import Settings
from tasks.measuring.subnets import SubNetMeter

FORMATS: tuple[chains.ChainFormat, ...] = ("onnx", "ncnn")


def require_exits(settings: Settings, net: SuperNet) -> None:
    """UserError if chains are requested but the space has no exits."""
    if settings.segments is True and not net.exits(net.max_config):
        next_step = "compile with space.exits=auto for some"
        raise UserError(
            "export.segments", "true, but the space has no exits", allowed="auto, false", next_step=next_step
        )


@dataclass(frozen=True, slots=True)
class ChainWriter:
    """Writes the chains of SubNets into `out`. images: for BatchNorm statistics. policies: by the digests of SubNets."""

    builder: Builder
    images: EvaluationData
    out: Path
    policies: Mapping[str, SubnetPolicy] = field(default_factory=dict)

    def write(self, card: Card, inputs: Images) -> dict[str, ExportedFile]:
        """The chain of a SubNet in each exported format that has one, by name: `onnx_segments`, `ncnn_segments`.

        {} for a SubNet that passes no exit before its own. inputs: images for the check (N, C, H, W).
        """
        builder = self.builder
        if builder.settings.segments is False or len(builder.net.exits(card.config)) < 2:
            return {}
        plan = chain_files.plan_of(builder.net, card, self.policies.get(card.digest))
        statistics = chain_files.chain_statistics(builder.net, plan.config, plan.exits, self.images)
        if card.digest in builder.adapted:
            statistics |= builder.adapted[card.digest].tensors
        segments = builder.net.segments(plan.config, statistics, plan.exits)
        found = {}
        for name in (one for one in FORMATS if one in builder.settings.formats):
            try:
                make = chain_files.onnx_chain if name == "onnx" else chain_files.ncnn_chain
                made = make(builder, card.digest, plan, statistics)
                found[f"{name}_segments"] = self._file(card, plan, made, segments, inputs)
            except (ConversionError, ModelTooLargeError, RunError) as error:
                found[f"{name}_segments"] = ExportedFile(state="failed", reason=str(error))
        return found

    def _file(
        self,
        card: Card,
        plan: chain_files.ChainPlan,
        made: chain_files.MadeChain,
        segments: Sequence[Segment],
        inputs: Images,
    ) -> ExportedFile:
        """Check a chain against torch, and keep its files when all segments agree."""
        client = self.builder.runtime(made.format)
        device, on_device = client.capabilities(), client is self.builder.client
        precision: Precision = "fp32" if device.precision == "int8" else device.precision  # the files are not quantised
        differences = chain_files.largest_difference(client, made, segments, inputs)
        difference, tolerance = max(differences), self.builder.settings.tolerance.of(precision)
        file = ExportedFile(
            state="ok",
            relative_difference=difference if math.isfinite(difference) else None,
            tolerance=tolerance,
            images=len(inputs),
            on_device=on_device,
            runtime=device.backend,
            precision=precision,
        )
        wrong = [at for at, one in enumerate(differences) if not one <= tolerance]
        if wrong:
            where = f"segment {wrong[0]}, exit {segments[wrong[0]].exit}"
            reason = f"{where}: outputs differ from torch by {differences[wrong[0]]:.3g}"
            reason += f"; allowed in {precision}: {tolerance:g}"
            return file.model_copy(update={"state": "failed", "reason": reason})
        rows = self._rows(made, segments, on_device=on_device)
        run = run_of(device, made.own_jobs[-1 if made.format == "ncnn" else 0])
        described = {"precision": precision, "masks": dict(made.masks), "outputs": _answers(made)}
        run = run.model_copy(update=described)
        found = {"run": run, "segments": tuple(rows), "expected_ms": plan.expected_ms(rows)}
        return self._kept(card, plan, made, file.model_copy(update=found))

    def _rows(
        self, made: chain_files.MadeChain, segments: Sequence[Segment], *, on_device: bool
    ) -> list[ExportedSegment]:
        times_ms = self._timed(made) if on_device else [None] * len(segments)
        return [
            ExportedSegment(exit=segment.exit, macs=segment.macs, latency_ms=time_ms)
            for segment, time_ms in zip(segments, times_ms, strict=True)
        ]

    def _timed(self, made: chain_files.MadeChain) -> list[float | None]:
        """Latency of each segment on the device [ms], p50; in ncnn the difference between its exit and the one before."""
        builder = self.builder
        meter = SubNetMeter(builder.net, builder.client, builder.settings.measure, builder.settings.limits)
        times_ms = [one.p50_ms for one in meter.time(made.own_jobs)]
        known = [one for one in times_ms if one is not None]
        if made.format == "onnx" or len(known) < len(times_ms):
            return times_ms if made.format == "onnx" else [None] * len(times_ms)
        return [max(0.0, later - earlier) for earlier, later in pairwise([0.0, *known])]

    def _kept(
        self, card: Card, plan: chain_files.ChainPlan, made: chain_files.MadeChain, file: ExportedFile
    ) -> ExportedFile:
        """Write the files, the manifest last."""
        manifest = _manifest(card, plan, made, file)
        contents = {**made.contents, **plan.thresholds_file, chains.SEGMENTS_FILE: manifest.to_json().encode()}
        folder = f"{card.digest}.{made.format}.segments"
        (self.out / folder).mkdir(exist_ok=True)
        for name, content in contents.items():
            write_bytes(self.out / folder / name, content)
        digests = {f"{folder}/{name}": _sha256(content) for name, content in contents.items()}
        return file.model_copy(update={"sha256": digests, "bytes": sum(map(len, contents.values()))})


def _manifest(
    card: Card, plan: chain_files.ChainPlan, made: chain_files.MadeChain, file: ExportedFile
) -> chains.ChainManifest:
    assert file.run is not None, "a chain that was checked has run"
    segments = []
    for at, (row, job) in enumerate(zip(file.segments, made.own_jobs, strict=True)):
        read, given = _tensors(job, free=made.free), _tensors(job, inputs=False, free=made.free)
        own = {"file": f"{at}.onnx"} if made.format == "onnx" else {}
        if made.format == "ncnn":  # ncnn continues from values it has computed
            read, given = () if at else read, given[-1:]
        segments.append(chains.ChainSegment(**own, inputs=read, outputs=given, **row.model_dump()))
    return chains.ChainManifest(
        format=made.format,
        digest=card.digest,
        files={name: _sha256(content) for name, content in made.contents.items()},
        input=segments[0].inputs[0],
        segments=tuple(segments),
        classes=card.classes,
        preparation=card.preparation,
        runtime=file.run.runtime,
        settings=file.run.settings,
        thresholds=next(iter(plan.thresholds_file), None),
    )


def _tensors(job: ModelJob, *, inputs: bool = True, free: bool = False) -> tuple[chains.ChainTensor, ...]:
    """Inputs or outputs of a job. free: the number of samples is open."""
    names, shapes = (job.input_names, job.input_shapes) if inputs else (job.output_names, job.output_shapes or ())
    return tuple(
        chains.ChainTensor(name=name, shape=(None, *shape[1:]) if free else shape)
        for name, shape in zip(names, shapes, strict=True)
    )


def _answers(made: chain_files.MadeChain) -> tuple[FileTensor, ...]:
    """The answers of all exits by their names in the files."""
    place = -1 if made.format == "ncnn" else 0
    found = [_tensors(job, inputs=False, free=made.free)[place] for job in made.own_jobs]
    return tuple(FileTensor(name=one.name, shape=one.shape) for one in found)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


CHAIN = "onnx_segments"


def chain_exits(card: Card) -> tuple[str, ...]:
    """The exits of a SubNet's chain of ONNX files; () if there is none."""
    return tuple(segment.exit for segment in card.files[CHAIN].segments) if CHAIN in card.files else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledChain:
    """A chain in a bundle: the name of its manifest, and its largest difference from torch, over the largest value."""

    name: str
    manifest: chains.ChainManifest
    thresholds: Thresholds | None
    difference: float


def bundle_chain(
    net: SuperNet,
    card: Card,
    statistics: Statistics,
    out: Path,
    folder: Path,
    inputs: Images,
    settings: Mapping[str, Setting],
) -> BundledChain:
    """Write the manifest of the segments `DIGEST.0.onnx`, … in the bundle `folder`, and their thresholds.

    out: the stage's folder with the chain's own files. inputs: images for the check (N, C, H, W). settings: of the runtime. The
    difference is inf if it is not finite.
    """
    own = out / f"{card.digest}.onnx.segments"
    alone = chains.ChainManifest.read(own / chains.SEGMENTS_FILE)
    segments = tuple(
        _renamed(segment, f"{card.digest}.{at}.onnx", net.batch) for at, segment in enumerate(alone.segments)
    )
    names = [*(str(segment.file) for segment in segments), WEIGHTS_FILE]
    described = {
        "segments": segments,
        "input": segments[0].inputs[0],
        "runtime": "onnxruntime",
        "settings": dict(settings),
    }
    name, changed = f"{card.digest}.{chains.SEGMENTS_FILE}", {**described, "files": _digests(folder, names)}
    manifest, thresholds = _written(name, alone, own, folder, changed)
    options = chains.session_options(settings)
    sessions = [
        onnxruntime.InferenceSession(folder / str(segment.file), options, providers=["CPUExecutionProvider"])
        for segment in segments
    ]

    def run(x_BCHW: Images) -> Iterator[chain_files.Values]:
        values = {manifest.input.name: x_BCHW}
        for session in sessions:
            given = [one.name for one in session.get_outputs()]
            results = session.run(given, {one.name: values[one.name] for one in session.get_inputs()})
            values.update(zip(given, results, strict=True))
            yield list(results)

    config = net.space.canonical({**card.config, "exit": manifest.exits[-1]})
    parts = net.segments(config, statistics, manifest.exits)
    worst = max(chain_files.differences_of(parts, inputs, net.batch, run))
    worst = worst if np.isfinite(worst) else np.inf
    return BundledChain(name=name, manifest=manifest, thresholds=thresholds, difference=worst)


def copy_ncnn_chain(card: Card, out: Path, folder: Path) -> BundledChain | None:
    """Copy the checked ncnn chain of stage export into the bundle `folder`; None if there is none."""
    file = card.files.get("ncnn_segments")
    if file is None or file.state != "ok" or file.relative_difference is None:
        return None
    own = out / f"{card.digest}.ncnn.segments"
    alone = chains.ChainManifest.read(own / chains.SEGMENTS_FILE)
    for name in alone.files:
        shutil.copyfile(own / name, folder / f"{card.digest}.{name}")
    files = _digests(folder, [f"{card.digest}.{name}" for name in alone.files])
    name = f"{card.digest}.ncnn.{chains.SEGMENTS_FILE}"
    manifest, thresholds = _written(name, alone, own, folder, {"files": files})
    return BundledChain(name=name, manifest=manifest, thresholds=thresholds, difference=file.relative_difference)


def _written(
    name: str, alone: chains.ChainManifest, own: Path, folder: Path, changed: Mapping[str, Any]
) -> tuple[chains.ChainManifest, Thresholds | None]:
    """Write the manifest of a chain, changed for the bundle, and its thresholds."""
    thresholds, names = None, {}
    if alone.thresholds is not None:
        content = (own / alone.thresholds).read_bytes()
        thresholds = Thresholds.from_json(content, alone.thresholds)
        names["thresholds"] = f"{alone.digest}.{alone.thresholds}"
        write_bytes(folder / names["thresholds"], content)
    manifest = alone.model_copy(update={**changed, **names})
    write_bytes(folder / name, manifest.to_json().encode())
    return manifest, thresholds


def _digests(folder: Path, names: list[str]) -> dict[str, str]:
    return {name: sha256_of(folder / name) for name in names}


def _renamed(segment: chains.ChainSegment, file: str, batch: int) -> chains.ChainSegment:
    """The segment in another file, which takes `batch` samples."""
    tensors = {
        field: tuple(
            one.model_copy(update={"shape": tuple(batch if size is None else size for size in one.shape)})
            for one in each
        )
        for field, each in (("inputs", segment.inputs), ("outputs", segment.outputs))
    }
    return segment.model_copy(update={"file": file, **tensors})
