"""Running ONNX models by onnxruntime, as they are written or with constants computed first."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime

QUIET = 4  # of onnxruntime's levels: nothing but what ends the process
WRONG_REWRITES = ("Pad_Fusion", "TransposeOptimizer")
"""Optimisers of onnxruntime that change answers: padding with zeros becomes padding of a MaxPool, with minus infinity; a
Transpose moves behind a linear Resize, which onnxruntime then refuses."""
OLD_IR_VERSION = 10
"""onnxruntime takes files of this version of the format; libraries write later ones before it knows them."""


def run(
    model: onnx.ModelProto,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
) -> list[np.ndarray]:
    """The outputs of a model. Raises what onnxruntime raises, which is of many types, where it cannot run the model."""
    return session_of(model).run(outputs, dict(inputs))


def session_of(model: onnx.ModelProto, *, folded: bool = False) -> onnxruntime.InferenceSession:
    """A model ready to run, once or often. Raises as `run`.

    folded: what depends on constants alone is computed first, and nothing is rewritten wrongly. Else BatchNorms in training
    form, which standardise weights, write into stored tensors whenever they run, and so change the next answer.
    """
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = levels.ORT_ENABLE_BASIC if folded else levels.ORT_DISABLE_ALL
    options.log_severity_level = QUIET
    written = model.ir_version
    model.ir_version = min(written, OLD_IR_VERSION)
    content = model.SerializeToString()
    model.ir_version = written
    return onnxruntime.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], disabled_optimizers=WRONG_REWRITES
    )
