"""Running ONNX models by onnxruntime as they are written: nothing is optimised on the way."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

QUIET = 4  # of onnxruntime's levels: nothing but what ends the process


def run(
    model: onnx.ModelProto, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
) -> list[np.ndarray]:
    """The outputs of a model. Raises what onnxruntime raises, which is of many types, where it cannot run the model."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = QUIET
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(outputs, dict(inputs))
