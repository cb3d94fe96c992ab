"""The segments of a planned SubNet as ONNX and ncnn files with a manifest: one after the other, they equal the SubNet.

A segment is a group of the SubNet's operators. ONNX files are checked, and ncnn files in ncnn itself. Blobs are named like
values, so that a device with ncnn reads and gives the same values as a device with ONNX files. `parts.json` has the segments
of one plan (parts), `segments.json` those among which plans change at run time (a chain).
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.chains import (
    PARTS_FILE,
    SEGMENTS_FILE,
    ChainManifest,
    ChainSegment,
    ChainTensor,
    NcnnPair,
    PartsManifest,
    PartTensor,
    SubnetPart,
)
from profiling_agents.client import ModelJob, RunError, local_agent
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.placed import SegmentRow
from tasks.evaluation.conversion import ConversionError
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.settings import Tolerance

TOLERANCE = 1e-5
SMALLEST = 1e-12
FLOAT = "float32"
ELEMENT_TYPES = {
    "tensor(float)": FLOAT,
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}
MOST_NAME = 200
NO_WEIGHTS = bytes(4)
"""Content instead of an empty file, which cannot be sent; ncnn reads nothing of it."""
WHERE = "partition.ncnn"
WITHOUT = "use a backend that takes ONNX files: onnxruntime, openvino, torch"
Groups = Sequence[Sequence[int]]
"""Operators of each segment, by their positions in running order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainOptions:
    """Options of segments' files. threads: of the coordinator's runtime. ncnn: also write files of ncnn beside each segment.

    statistics: BatchNorm statistics of the SubNet; None: those of the SuperNet. prefix: of all names of files.
    """

    threads: int = 1
    ncnn: bool = False
    statistics: Statistics | None = None
    prefix: str = ""


PLAIN = ChainOptions()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentFiles:
    """A segment that is written and checked. macs: for one sample."""

    file: str
    ncnn: NcnnPair | None
    inputs: tuple[PartTensor, ...]
    outputs: tuple[PartTensor, ...]
    macs: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExportedSegments:
    """Segments of a SubNet. files: sha256 by name. input, outputs: names of the network's own values.

    difference: largest difference of the segments' answer from the whole SubNet's, relative to the largest value.
    """

    segments: tuple[SegmentFiles, ...]
    files: dict[str, str]
    input: str
    outputs: tuple[str, ...]
    difference: float


def export_checked(
    net: SuperNet, config: Mapping[str, Choice], groups: Groups, folder: Path, options: ChainOptions = PLAIN
) -> ExportedSegments:
    """Write groups of operators as `0.onnx`, … into a folder, with `0.param` and `0.bin` for ncnn.

    UserError: the segments' answer differs from the whole SubNet's by more than 1e-5, a segment cannot be converted to ncnn, or
    the segments' answer in ncnn differs from onnxruntime's by more than 1e-4.
    """
    models, whole = _models(net, config, groups, options)
    placed, x = net.placed_operators(config), net.sample_input(config, np.random.default_rng(0))
    sessions, values = [session_of(model) for model in models], {net.structure.graph.inputs[0]: x}
    for session in sessions:
        given = session.run(None, {one.name: values[one.name] for one in session.get_inputs()})
        values.update(zip([one.name for one in session.get_outputs()], given, strict=True))
    expected = whole.run(None, {whole.get_inputs()[0].name: x})
    difference = _apart([values[name] for name in placed.outputs], expected)
    if not difference <= TOLERANCE:
        got = f"the segments' answer differs from the whole SubNet's by {difference:.3g}"
        raise UserError(
            f"segments in '{folder}'", got, allowed=f"{TOLERANCE:g}", next_step="please report this network"
        )
    jobs = ncnn_jobs(models, sessions) if options.ncnn else []
    if jobs:
        _check_ncnn(jobs, values, placed.inputs[0], placed.outputs)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{options.prefix}{number}.onnx" for number in range(len(groups))]
    pairs = [(f"{options.prefix}{number}.param", f"{options.prefix}{number}.bin") for number in range(len(jobs))]
    contents = dict(zip(names, models, strict=True))
    for pair, job in zip(pairs, jobs, strict=True):
        contents |= zip(pair, job.files, strict=True)
    for name, content in contents.items():
        write_bytes(folder / name, content)
    operators = net.pre_partition().under(net.space.row(config)).operators
    segments = (
        SegmentFiles(
            file=file,
            ncnn=pairs[number] if pairs else None,
            inputs=tuple(map(tensor_of, session.get_inputs())),
            outputs=tuple(map(tensor_of, session.get_outputs())),
            macs=sum(operators[at].feature.macs for at in groups[number]) // net.batch,
        )
        for number, (file, session) in enumerate(zip(names, sessions, strict=True))
    )
    return ExportedSegments(
        segments=tuple(segments),
        files={name: sha256_of(folder / name) for name in contents},
        input=placed.inputs[0],
        outputs=tuple(placed.outputs),
        difference=difference,
    )


def _models(
    net: SuperNet, config: Mapping[str, Choice], groups: Groups, options: ChainOptions
) -> tuple[list[bytes], onnxruntime.InferenceSession]:
    """ONNX files of the segments, and a session of the whole SubNet."""
    with tempfile.TemporaryDirectory(prefix="autotailor-partition-") as name:
        scratch = Path(name)
        net.export_parts(config, groups, scratch, statistics=options.statistics, fold_batch_norm=True)
        net.export(config, scratch / "whole.onnx", statistics=options.statistics, fold_batch_norm=True)
        models = [(scratch / f"{number}.onnx").read_bytes() for number in range(len(groups))]
        return models, session_of((scratch / "whole.onnx").read_bytes())


def session_of(model: bytes) -> onnxruntime.InferenceSession:
    """A session of an ONNX file, on the CPU."""
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def _apart(ours: Sequence[Array], theirs: Sequence[Array]) -> float:
    """The largest difference of an output, relative to the output's largest value; NaN if one has it."""
    apart = (
        np.abs(own - other).max() / max(np.abs(other).max(), SMALLEST) for own, other in zip(ours, theirs, strict=True)
    )
    return float(np.max(list(apart)))


def tensor_of(value: onnxruntime.NodeArg) -> PartTensor:
    """An input or output of a session."""
    return PartTensor(name=value.name, shape=tuple(value.shape), element_type=ELEMENT_TYPES[value.type])


def ncnn_jobs(models: Sequence[bytes], sessions: Sequence[onnxruntime.InferenceSession]) -> list[ModelJob]:
    """Segments for ncnn. UserError: one cannot be converted."""
    from tasks.evaluation.ncnn.conversion import convert, convert_operators  # imports ncnn

    jobs = []
    for number, (model, found) in enumerate(zip(models, convert_operators(models), strict=True)):
        try:
            files = convert(model) if isinstance(found, ConversionError) else found
            jobs.append(_job(number, sessions[number], files))
        except ConversionError as error:
            raise UserError(WHERE, f"segment {number} has no form in ncnn ({error})", next_step=WITHOUT) from error
    return jobs


def _job(number: int, session: onnxruntime.InferenceSession, files: NcnnFiles) -> ModelJob:
    """A segment whose blobs are named like its values. ConversionError: a value is not float32, or its name is no blob's."""
    read, given = (tuple(map(tensor_of, each)) for each in (session.get_inputs(), session.get_outputs()))
    for tensor in (*read, *given):
        if tensor.element_type != FLOAT:
            raise ConversionError(f"'{tensor.name}' is {tensor.element_type}")
        if len(tensor.name) > MOST_NAME or len(tensor.name.split()) != 1:
            raise ConversionError(f"'{tensor.name}' cannot be the name of a blob")
    renamed = {f"in{at}": tensor.name for at, tensor in enumerate(read)}
    renamed |= {f"out{at}": tensor.name for at, tensor in enumerate(given)}
    layers = [layer.renamed(renamed) for layer in files.layers()]
    return ModelJob(
        key=f"part {number}",
        format="ncnn",
        files=(NcnnFiles.of(layers, files.bin).param, files.bin or NO_WEIGHTS),
        input_names=tuple(one.name for one in read),
        input_shapes=tuple(one.shape for one in read),
        output_names=tuple(one.name for one in given),
        output_shapes=tuple(one.shape for one in given),
    )


def _check_ncnn(jobs: Sequence[ModelJob], expected: Mapping[str, Array], input: str, outputs: Sequence[str]) -> None:
    """Run all segments in sequence in an agent. UserError: the answers differ from those of onnxruntime."""
    values = {input: expected[input]}
    with local_agent("ncnn") as client, client.lease():
        for number, job in enumerate(jobs):
            try:
                found = client.run(job, [values[name] for name in job.input_names])
            except RunError as error:
                raise UserError(WHERE, f"segment {number} does not run in ncnn ({error})", next_step=WITHOUT) from error
            values.update(zip(job.output_names, found, strict=True))
    allowed = Tolerance().fp32
    worst = _apart([values[name] for name in outputs], [expected[name] for name in outputs])
    if not worst <= allowed:  # also fails for a NaN
        got = f"the segments' answer in ncnn differs from that of onnxruntime by {worst:.3g}"
        raise UserError(WHERE, got, allowed=f"{allowed:g}", next_step=WITHOUT)


def write_parts(
    net: SuperNet,
    config: Mapping[str, Choice],
    segments: Sequence[SegmentRow],
    coordinator: str,
    folder: Path,
    options: ChainOptions = PLAIN,
) -> PartsManifest:
    """Write the segments of a plan as `0.onnx`, … with `parts.json`. coordinator: the device that has the input.

    UserError: as `export_checked`.
    """
    exported = export_checked(net, config, [one.operators for one in segments], folder, options)
    parts = tuple(
        SubnetPart(
            file=one.file,
            ncnn=one.ncnn,
            device=segment.device,
            inputs=one.inputs,
            outputs=one.outputs,
            operators=len(segment.operators),
            macs=one.macs,
        )
        for one, segment in zip(exported.segments, segments, strict=True)
    )
    given = {tensor.name: tensor for part in parts for tensor in part.outputs}
    manifest = PartsManifest(
        digest=net.space.digest(config),
        files=exported.files,
        coordinator=coordinator,
        input=PartTensor(name=exported.input, shape=net.input_shape(config)),
        outputs=tuple(given[name] for name in dict.fromkeys(exported.outputs)),
        parts=parts,
        difference=exported.difference,
    )
    write_bytes(folder / PARTS_FILE, manifest.to_json().encode())
    return manifest


def write_chain(
    net: SuperNet, config: Mapping[str, Choice], groups: Groups, folder: Path, options: ChainOptions = PLAIN
) -> ChainManifest:
    """Write groups of operators as the segments of a chain, in `segments.json` and files.

    UserError: as `export_checked`, or the network passes values other than float32.
    """
    exported = export_checked(net, config, groups, folder, options)
    if len(set(exported.outputs)) != 1:
        got = f"the network has {len(set(exported.outputs))} outputs"
        raise UserError("partition.plans", got, allowed="one", next_step="use partition.parts")
    segments = []
    for one in exported.segments:
        other = next((tensor for tensor in (*one.inputs, *one.outputs) if tensor.element_type != FLOAT), None)
        if other is not None:
            got = f"'{other.name}' is {other.element_type}"
            raise UserError("partition.plans", got, allowed=FLOAT, next_step="use partition.parts")
        inputs, outputs = (
            tuple(ChainTensor(name=tensor.name, shape=tensor.shape) for tensor in each)
            for each in (one.inputs, one.outputs)
        )
        own = {"exit": outputs[0].name, "file": one.file, "ncnn": one.ncnn, "macs": one.macs}
        segments.append(ChainSegment.model_validate({**own, "inputs": inputs, "outputs": outputs}))
    manifest = ChainManifest(
        format="onnx",
        digest=net.space.digest(config),
        files=exported.files,
        input=segments[0].inputs[0],
        segments=tuple(segments),
        runtime="onnxruntime",
        settings={"intra_op_num_threads": options.threads, "session.intra_op.allow_spinning": "0"},
    )
    write_bytes(folder / f"{options.prefix}{SEGMENTS_FILE}", manifest.to_json().encode())
    return manifest
