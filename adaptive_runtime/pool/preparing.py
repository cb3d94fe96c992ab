"""The child process that prepares ONNX files: `python -m adaptive_runtime.pool.preparing ORDER`, where ORDER is JSON.

The runtime optimises each model, which takes time and three times its memory, and writes the optimised graph, and its weights
in the kernels' own layout. A prepared file is valid only if both models give the same answers to the same inputs.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from adaptive_runtime.base.process import step_back
from adaptive_runtime.bundle.chains import inputs_of, session_options
from profiling_agents.messages import Message, RuntimeSettings

MODEL_FILE, WEIGHTS_FILE = "model.onnx", "weights.bin"
TOLERANCE = 1e-5
NICENESS = 5
LEAST_BYTES = "256"
UNCHANGED = "ORT_DISABLE_ALL"


class PreparationOrder(Message):
    """The ONNX files to prepare, each with an existing folder for the result, and the settings of the runtime."""

    places: tuple[tuple[Path, Path], ...]
    settings: RuntimeSettings


def prepare(source: Path, folder: Path, settings: RuntimeSettings) -> None:
    """Write the optimised model and its weights. ValueError if its answers differ."""
    import onnxruntime

    options = session_options(settings)
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / MODEL_FILE)
    for name, value in (("file_name", WEIGHTS_FILE), ("min_size_in_bytes", LEAST_BYTES)):
        options.add_session_config_entry(f"session.optimized_model_external_initializers_{name}", value)
    first = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    options = session_options(prepared_settings(settings))
    second = onnxruntime.InferenceSession(folder / MODEL_FILE, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = inputs_of(first, rng)
    for expected, got in zip(first.run(None, inputs), second.run(None, inputs), strict=True):
        if not np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max():
            raise ValueError("the prepared model gives other answers")


def prepared_settings(settings: RuntimeSettings) -> dict[str, Any]:
    """The settings with which a prepared model runs: without further optimisation."""
    return {**settings, "graph_optimization_level": UNCHANGED}


if __name__ == "__main__":
    step_back(NICENESS)
    given = PreparationOrder.model_validate(json.loads(sys.argv[1]))
    for source, folder in given.places:
        prepare(source, folder, given.settings)
