"""A network in an .onnx file that onnxruntime runs, such as the teacher whose answers are the targets of samples."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from adaptive_runtime.base.arrays import TENSOR_TYPES
from adaptive_runtime.samples.inputs import packed, unpacked
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError, shortened
from tasks.data.settings import TEACHER_FILE, GivenNetwork


def carry_teacher(source: Path, target: Path) -> None:
    """Copy the teacher of a SuperNet into the folder of another one, if there is a teacher."""
    if (source / TEACHER_FILE).exists():
        write_bytes(target / TEACHER_FILE, (source / TEACHER_FILE).read_bytes())


def states_of(network: GivenNetwork, samples: Mapping[str, np.ndarray], window: int | None) -> dict[str, np.ndarray]:
    """The states (N, …) of a network before each of N samples that follow one another, by name.

    They are zeros before the first sample, and anew after each `window` samples; then they are the network's own outputs. Their
    first axis of size 1 or of an open size is that of samples. UserError: the network cannot run so.
    """
    where = f"model file '{network.path}'"
    session = _session(network.path, where)
    inputs = {one.name: one for one in session.get_inputs()}
    zeros = {name: _filled(inputs[name], 0) for name in network.states if name not in samples}
    constants = {name: _filled(inputs[name], number) for name, number in network.constants.items()}
    given = {name: one.astype(TENSOR_TYPES[inputs[name].type]) for name, one in samples.items()}
    outputs = [network.states[name] for name in zeros]
    found: dict[str, list[np.ndarray]] = {name: [] for name in zeros}
    states, count = zeros, len(next(iter(samples.values())))
    for row in range(count):
        if row % (window or count) == 0:
            states = zeros
        for name, state in states.items():
            found[name].append(_without_samples(state, inputs[name].shape))
        row_of = {name: one[row : row + 1] for name, one in given.items()}
        answers = _answers(session, outputs, {**constants, **states, **row_of}, where)
        states = dict(zip(zeros, answers, strict=True))
    return {name: np.stack(each) for name, each in found.items()}


def _filled(given: Any, number: float) -> np.ndarray:
    """One sample of an input of onnxruntime, filled with a number."""
    return np.full([size if isinstance(size, int) else 1 for size in given.shape], number, TENSOR_TYPES[given.type])


def _without_samples(state: np.ndarray, sizes: Sequence[Any]) -> np.ndarray:
    """A state of one sample without the axis of samples. UserError: it has none."""
    axis = next((axis for axis, size in enumerate(sizes) if size == 1 or not isinstance(size, int)), None)
    if axis is None:
        raise UserError("model.states", f"a state of {list(sizes)}", allowed="an axis of samples, open or of size 1")
    return state.squeeze(axis)


def _session(model: Path | bytes, where: str) -> Any:
    try:
        return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UserError(where, f"onnxruntime cannot read it ({shortened(error)})") from error


def _answers(
    session: Any, outputs: Sequence[str] | None, given: Mapping[str, np.ndarray], where: str
) -> list[np.ndarray]:
    try:
        found: list[np.ndarray] = session.run(outputs, given)
    except Exception as error:
        raise UserError(where, f"onnxruntime cannot run it ({shortened(error)})") from error
    return found


class OnnxNetwork:
    """The network of a file. With a fixed batch it runs as often as needed, and so if it takes no batch but one.

    Inputs are cast to the types of the file.
    """

    def __init__(self, model: Path | bytes) -> None:
        """Open a file or its content. UserError if onnxruntime cannot run it."""
        self._where = f"model file '{model}'" if isinstance(model, Path) else "ONNX model"
        self._session = _session(model, self._where)
        given = self._session.get_inputs()
        self._types = {one.name: TENSOR_TYPES[one.type] for one in given}
        self._batch = max((one.shape[0] for one in given if one.shape and isinstance(one.shape[0], int)), default=None)

    def __call__(self, *x: torch.Tensor) -> Any:
        """The outputs for all samples, a tuple if there are several; a file with several inputs takes them in order."""
        samples = packed(dict(zip(self._types, (one.cpu().numpy() for one in x), strict=True)))
        size = self._batch or len(samples)
        padding = np.zeros((-len(samples) % size, *samples.shape[1:]), samples.dtype)
        parts = np.split(np.concatenate([samples, padding]), range(size, len(samples), size))
        try:
            answers = list(map(self._run, parts))
        except UserError:
            if self._batch is not None:
                raise
            self._batch = 1  # the file says that the batch is open, but a part of it takes one sample
            return self(*x)
        columns = zip(*answers, strict=True)
        found = tuple(_real(np.concatenate(column)[: len(samples)]) for column in columns)
        return found[0] if len(found) == 1 else found

    def _run(self, samples: np.ndarray) -> list[np.ndarray]:
        pairs = zip(self._types.items(), unpacked(samples), strict=True)
        given = {name: one.astype(kind, copy=False) for (name, kind), one in pairs}
        found = _answers(self._session, None, given, self._where)
        return [one if len(samples) > 1 or one.shape[:1] == (1,) else one[None] for one in found]  # a Squeeze drops it


def _real(output: np.ndarray) -> torch.Tensor:
    """An output in torch; numbers in half or double as float32."""
    return torch.from_numpy(output.astype(np.float32) if output.dtype.kind == "f" else output)
