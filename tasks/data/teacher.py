"""A network in an .onnx file that onnxruntime runs, such as the teacher whose answers are the targets of samples."""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from adaptive_runtime.samples.inputs import packed, unpacked
from tasks.base.artifacts import write_bytes
from tasks.base.errors import UserError, shortened
from tasks.data.settings import TEACHER_FILE


def carry_teacher(source: Path, target: Path) -> None:
    """Copy the teacher of a SuperNet into the folder of another one, if there is a teacher."""
    if (source / TEACHER_FILE).exists():
        write_bytes(target / TEACHER_FILE, (source / TEACHER_FILE).read_bytes())


class OnnxNetwork:
    """The network of a file. With a fixed batch it runs as often as needed."""

    def __init__(self, model: Path | bytes) -> None:
        """Open a file or its content. UserError if onnxruntime cannot run it."""
        self._where = f"model file '{model}'" if isinstance(model, Path) else "ONNX model"
        try:
            self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise UserError(self._where, f"onnxruntime cannot read it ({shortened(error)})") from error
        given = self._session.get_inputs()
        self._names = [one.name for one in given]
        self._batch = given[0].shape[0] if isinstance(given[0].shape[0], int) else None

    def __call__(self, *x: torch.Tensor) -> Any:
        """The outputs for all samples, a tuple if there are several; a file with several inputs takes them in order."""
        samples = packed(dict(zip(self._names, (one.cpu().numpy() for one in x), strict=True)))
        size = self._batch or len(samples)
        padding = np.zeros((-len(samples) % size, *samples.shape[1:]), samples.dtype)
        parts = np.split(np.concatenate([samples, padding]), range(size, len(samples), size))
        columns = zip(*map(self._run, parts), strict=True)
        found = tuple(torch.from_numpy(np.concatenate(column)[: len(samples)]) for column in columns)
        return found[0] if len(found) == 1 else found

    def _run(self, samples: np.ndarray) -> list[np.ndarray]:
        try:
            found: list[np.ndarray] = self._session.run(None, dict(zip(self._names, unpacked(samples), strict=True)))
        except Exception as error:
            raise UserError(self._where, f"onnxruntime cannot run it ({shortened(error)})") from error
        return found
