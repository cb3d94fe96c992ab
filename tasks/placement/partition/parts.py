"""The parts of a planned SubNet as ONNX and ncnn files with a manifest: one after the other, they equal the SubNet.

Parts are groups of the SubNet's operators. ONNX files are checked, and ncnn files in ncnn itself. Blobs are named like
values, so that a device with ncnn reads and gives the same values as a device with ONNX files.
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from adaptive_runtime.base.arrays import Array
from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.chains import PARTS_FILE, NcnnPair, PartsManifest, PartTensor, SubnetPart
from profiling_agents.client import ModelJob, RunError, local_agent
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.base.schemas.placed import StayRow
from tasks.evaluation.conversion import ConversionError
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.settings import Tolerance

TOLERANCE = 1e-5
SMALLEST = 1e-12
ELEMENT_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExportedParts:
    """Parts that are written and checked. input, outputs: names of the network's own. macs: of each part, for one sample.
    difference: largest difference of their answer from the whole SubNet's, relative to the largest value.
    """

    files: tuple[str, ...]
    sessions: tuple[onnxruntime.InferenceSession, ...]
    input: str
    outputs: tuple[str, ...]
    macs: tuple[int, ...]
    difference: float


def export_checked(
    net: SuperNet,
    config: Mapping[str, Choice],
    groups: Sequence[Sequence[int]],
    folder: Path,
    statistics: Statistics | None = None,
) -> ExportedParts:
    """Write groups of operators as `0.onnx`, … into a folder, and compare them with the whole SubNet.
    UserError: their answer differs from the SubNet's by more than 1e-5.
    """
    folder.mkdir(parents=True, exist_ok=True)
    net.export_parts(config, groups, folder, statistics=statistics, fold_batch_norm=True)
    files = tuple(f"{number}.onnx" for number in range(len(groups)))
    sessions = tuple(_session(folder / name) for name in files)
    x = net.sample_input(config, np.random.default_rng(0))
    placed = net.placed_operators(config)
    difference = _difference(net, config, statistics, sessions, x, placed.outputs)
    if not difference <= TOLERANCE:
        got = f"the parts' answer differs from the whole SubNet's by {difference:.3g}"
        raise UserError(f"parts in '{folder}'", got, allowed=f"{TOLERANCE:g}", next_step="please report this network")
    return ExportedParts(
        files=files,
        sessions=sessions,
        input=placed.inputs[0],
        outputs=tuple(placed.outputs),
        macs=tuple(_macs(net, config, groups)),
        difference=difference,
    )


def _difference(
    net: SuperNet,
    config: Mapping[str, Choice],
    statistics: Statistics | None,
    sessions: Sequence[onnxruntime.InferenceSession],
    x: NDArray[np.float32],
    outputs: Sequence[str],
) -> float:
    """The largest difference of an output of the parts from the whole SubNet's, relative to the output's largest value."""
    with tempfile.TemporaryDirectory(prefix="autotailor-partition-") as scratch:
        net.export(config, Path(scratch) / "whole.onnx", statistics=statistics, fold_batch_norm=True)
        whole = _session(Path(scratch) / "whole.onnx")
        expected = whole.run(None, {whole.get_inputs()[0].name: x})
    values = {net.structure.graph.inputs[0]: x}
    for session in sessions:
        found = session.run(None, {one.name: values[one.name] for one in session.get_inputs()})
        values.update(zip([one.name for one in session.get_outputs()], found, strict=True))
    worst = [
        float(np.abs(values[name] - theirs).max() / max(float(np.abs(theirs).max()), SMALLEST))
        for name, theirs in zip(outputs, expected, strict=True)
    ]
    return float(np.max(worst))  # np.max keeps a NaN


def _macs(net: SuperNet, config: Mapping[str, Choice], groups: Sequence[Sequence[int]]) -> list[int]:
    operators = net.pre_partition().under(net.space.row(config)).operators
    return [sum(operators[at].feature.macs for at in group) // net.batch for group in groups]


def _session(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def tensor_of(value: onnxruntime.NodeArg) -> PartTensor:
    """An input or output of a session."""
    return PartTensor(name=value.name, shape=tuple(value.shape), element_type=ELEMENT_TYPES[value.type])


def digests_of(folder: Path, files: Sequence[str], pairs: Sequence[tuple[str, str] | None]) -> dict[str, str]:
    """sha256 of files in a folder by name. pairs: files of ncnn, None if there are none."""
    names = (*files, *chain.from_iterable(pair for pair in pairs if pair is not None))
    return {name: sha256_of(folder / name) for name in names}


MOST_NAME = 200
NO_WEIGHTS = bytes(4)
"""Content instead of an empty file, which cannot be sent; ncnn reads nothing of it."""
WHERE = "partition.ncnn"
WITHOUT = "use a backend that takes ONNX files: onnxruntime, openvino, torch"


def write_ncnn(folder: Path, parts: ExportedParts, input_shape: Sequence[int]) -> list[tuple[str, str]]:
    """Write `0.param`, `0.bin`, … beside the ONNX files of parts; the names of each pair.
    UserError: a part cannot be converted to ncnn, or the parts' answer in ncnn differs from onnxruntime's by more than 1e-4.
    """
    from tasks.evaluation.ncnn.conversion import convert, convert_operators  # imports ncnn

    models = [(folder / name).read_bytes() for name in parts.files]
    jobs = []
    for number, (model, found) in enumerate(zip(models, convert_operators(models), strict=True)):
        try:
            files = convert(model) if isinstance(found, ConversionError) else found
            jobs.append(_job(number, parts, files))
        except ConversionError as error:
            raise UserError(WHERE, f"part {number} has no form in ncnn ({error})", next_step=WITHOUT) from error
    _check(parts, jobs, np.random.default_rng(0).standard_normal(tuple(input_shape)).astype(np.float32))
    pairs = []
    for number, job in enumerate(jobs):
        names = (f"{number}.param", f"{number}.bin")
        for name, content in zip(names, job.files, strict=True):
            write_bytes(folder / name, content)
        pairs.append(names)
    return pairs


def _job(number: int, parts: ExportedParts, files: NcnnFiles) -> ModelJob:
    """A part whose blobs are named like its values. ConversionError: a value is not float32, or its name cannot be a blob's."""
    session = parts.sessions[number]
    read, given = (tuple(map(tensor_of, each)) for each in (session.get_inputs(), session.get_outputs()))
    for tensor in (*read, *given):
        if tensor.element_type != "float32":
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
        input_names=_names(read),
        input_shapes=_shapes(read),
        output_names=_names(given),
        output_shapes=_shapes(given),
    )


def _names(tensors: Sequence[PartTensor]) -> tuple[str, ...]:
    return tuple(one.name for one in tensors)


def _shapes(tensors: Sequence[PartTensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(one.shape for one in tensors)


def _check(parts: ExportedParts, jobs: Sequence[ModelJob], x: Array) -> None:
    """Run all parts in sequence, in onnxruntime here and in ncnn in a separate agent. UserError: the answers differ."""
    ours, theirs = {parts.input: x}, {parts.input: x}
    with local_agent("ncnn") as client, client.lease():
        for number, (job, session) in enumerate(zip(jobs, parts.sessions, strict=True)):
            try:
                found = client.run(job, [ours[name] for name in job.input_names])
            except RunError as error:
                raise UserError(WHERE, f"part {number} does not run in ncnn ({error})", next_step=WITHOUT) from error
            ours.update(zip(job.output_names, found, strict=True))
            expected = session.run(job.output_names, {name: theirs[name] for name in job.input_names})
            theirs.update(zip(job.output_names, expected, strict=True))
    allowed = Tolerance().fp32
    differences = [_ncnn_difference(ours[name], theirs[name]) for name in parts.outputs]
    if not (worst := float(np.max(differences))) <= allowed:  # also fails for a NaN
        got = f"the parts' answer in ncnn differs from that of onnxruntime by {worst:.3g}"
        raise UserError(WHERE, got, allowed=f"{allowed:g}", next_step=WITHOUT)


def _ncnn_difference(ours: Array, theirs: Array) -> float:
    return float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), SMALLEST))


def write_parts(
    net: SuperNet,
    config: Mapping[str, Choice],
    stays: Sequence[StayRow],
    home: str,
    folder: Path,
    statistics: Statistics | None = None,
    *,
    ncnn: bool = False,
) -> PartsManifest:
    """Write the parts of a SubNet, one for each of `stays` (segments of a plan), as `0.onnx`, … with `parts.json`.

    home: the device that has the input. ncnn: also write files of ncnn beside each. UserError: the parts' answer differs from
    the whole SubNet's by more than 1e-5, or there are no files of ncnn that agree up to 1e-4.
    """
    exported = export_checked(net, config, [stay.operators for stay in stays], folder, statistics)
    files = exported.files
    pairs: Sequence[NcnnPair | None] = [None] * len(files)
    if ncnn:
        pairs = write_ncnn(folder, exported, net.input_shape(config))
    parts = tuple(
        SubnetPart(
            file=name,
            ncnn=pair,
            device=stay.device,
            inputs=tuple(tensor_of(one) for one in session.get_inputs()),
            outputs=tuple(tensor_of(one) for one in session.get_outputs()),
            operators=len(stay.operators),
            macs=own,
        )
        for name, pair, stay, session, own in zip(files, pairs, stays, exported.sessions, exported.macs, strict=True)
    )
    given = {tensor.name: tensor for part in parts for tensor in part.outputs}
    manifest = PartsManifest(
        digest=net.space.digest(config),
        files=digests_of(folder, files, pairs),
        home=home,
        input=PartTensor(name=exported.input, shape=net.input_shape(config)),
        outputs=tuple(given[name] for name in dict.fromkeys(exported.outputs)),
        parts=parts,
        difference=exported.difference,
    )
    write_bytes(folder / PARTS_FILE, manifest.to_json().encode())
    return manifest
