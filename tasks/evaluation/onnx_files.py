"""Accuracy of a network in an ONNX file, as onnxruntime computes it."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from tasks.errors import UserError, shortened


class OnnxNetwork:
    """The network of a file. With a fixed batch it runs as often as it takes."""

    def __init__(self, model: Path | bytes) -> None:
        """Of a file or its content. UserError when onnxruntime cannot run it."""
        self._where = f"model file '{model}'" if isinstance(model, Path) else "ONNX model"
        try:
            self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise UserError(self._where, f"onnxruntime cannot read it ({shortened(error)})") from error
        (given,) = self._session.get_inputs()
        self._input = given.name
        self._batch = given.shape[0] if isinstance(given.shape[0], int) else None

    def __call__(self, x_BCHW: torch.Tensor) -> torch.Tensor:
        """logits_BK of all images."""
        pixels = x_BCHW.cpu().numpy()
        parts = [pixels] if self._batch is None else [self._filled(part) for part in _pieces(pixels, self._batch)]
        logits = np.concatenate([self._run(part) for part in parts])[: len(pixels)]
        return torch.from_numpy(logits)

    def _filled(self, part: np.ndarray) -> np.ndarray:
        """The images, filled up with zeros to as many as the file takes."""
        assert self._batch is not None
        return np.concatenate([part, np.zeros((self._batch - len(part), *part.shape[1:]), part.dtype)])

    def _run(self, pixels: np.ndarray) -> np.ndarray:
        try:
            logits: np.ndarray = self._session.run(None, {self._input: pixels})[0]
        except Exception as error:
            raise UserError(self._where, f"onnxruntime cannot run it ({shortened(error)})") from error
        return logits


def _pieces(pixels: np.ndarray, size: int) -> list[np.ndarray]:
    return [pixels[first : first + size] for first in range(0, len(pixels), size)]
