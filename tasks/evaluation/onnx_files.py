"""Accuracy of a network in an ONNX file, as onnxruntime computes it."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from adaptive_runtime.samples.several import packed, unpacked
from tasks.base.errors import UserError, shortened


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

    def __call__(self, *x: torch.Tensor) -> torch.Tensor:
        """logits_BK for all images x_BCHW; a file with several inputs takes them in order."""
        samples = packed(dict(zip(self._names, (one.cpu().numpy() for one in x), strict=True)))
        size = self._batch or len(samples)
        parts = [self._filled(samples[first : first + size], size) for first in range(0, len(samples), size)]
        return torch.from_numpy(np.concatenate([self._run(part) for part in parts])[: len(samples)])

    def _filled(self, part: np.ndarray, size: int) -> np.ndarray:
        """The images, padded with zeros to the batch size of the file."""
        missing = size - len(part)
        return np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]) if missing else part

    def _run(self, samples: np.ndarray) -> np.ndarray:
        try:
            logits: np.ndarray = self._session.run(None, dict(zip(self._names, unpacked(samples), strict=True)))[0]
        except Exception as error:
            raise UserError(self._where, f"onnxruntime cannot run it ({shortened(error)})") from error
        return logits
