"""Groups of a SubNet's operators as ONNX files, checked: run one after the other, they equal the whole SubNet."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.chains import PartTensor
from tailor_ir import Choice, Statistics, SuperNet
from tasks.base.errors import UserError

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
