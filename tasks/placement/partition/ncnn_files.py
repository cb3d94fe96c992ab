"""Parts of a SubNet as files of ncnn beside those of ONNX, checked in ncnn itself: together they are the whole SubNet.

Blobs are named like values, so that a device with ncnn reads and gives the same values as a device with ONNX files.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.bundle.chains import PartTensor
from profiling_agents.client import ModelJob, RunError, local_agent
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError
from tasks.evaluation.conversion import ConversionError
from tasks.evaluation.ncnn.files import NcnnFiles
from tasks.measuring.settings import Tolerance
from tasks.placement.partition.checked import SMALLEST, ExportedParts, tensor_of

Array = NDArray[np.float32]
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
    differences = [_difference(ours[name], theirs[name]) for name in parts.outputs]
    if not (worst := float(np.max(differences))) <= allowed:  # also fails for a NaN
        got = f"the parts' answer in ncnn differs from that of onnxruntime by {worst:.3g}"
        raise UserError(WHERE, got, allowed=f"{allowed:g}", next_step=WITHOUT)


def _difference(ours: Array, theirs: Array) -> float:
    return float(np.abs(ours - theirs).max() / max(float(np.abs(theirs).max()), SMALLEST))
