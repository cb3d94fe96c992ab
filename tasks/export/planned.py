"""ONNX files with nodes in the order of least peak memory, if that saves memory.

Such a file is optimised for the processor of this machine, and is run with the session options of its card.
"""

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from profiling_agents.messages import MIB, Capabilities
from profiling_agents.sensing.sensors import cpu_model
from profiling_agents.startup import python_path
from tailor_ir import SuperNet
from tailor_ir.memory.planned_file import PlannedFile, plan_file, session_options
from tasks.base.errors import shortened
from tasks.base.schemas.exports import Card, PlannedMemory
from tasks.evaluation.conversion import ConversionError, ConversionLimits, run_limited
from tasks.export.facts import tell
from tasks.export.files import Images, Made, in_batches

SESSION_OPTIONS: dict[str, bool | str] = {
    "graph_optimization_level": "ORT_DISABLE_ALL",
    "execution_order": "PRIORITY_BASED",
    "enable_mem_reuse": False,
}
"""The options of `session_options`, in the words of onnxruntime's Python API."""
FILES = "default.onnx", "planned.onnx", "input.npy", "counted.json"


def in_planned_order(
    net: SuperNet, card: Card, made: Made, images: Images, device: Capabilities, limits: ConversionLimits
) -> Made:
    """The ONNX file in planned order if that saves memory, as counted on this machine; else the same file and the reason."""
    try:
        return _planned(net, card, made, images, device, limits)
    except ConversionError as error:
        return replace(made, memory=PlannedMemory(kept=False, reason=str(error)))


def _planned(
    net: SuperNet, card: Card, made: Made, images: Images, device: Capabilities, limits: ConversionLimits
) -> Made:
    if device.cpu_model != cpu_model():
        raise ConversionError(f"it would be optimised for {cpu_model()}; the device has {device.cpu_model}")
    model = onnx.load_model_from_string(made.contents[0])
    x_BCHW = np.resize(images, net.input_shape(card.config)).astype(images.dtype)
    name = model.graph.input[0].name
    try:
        plan = plan_file(model, {name: x_BCHW})
    except Exception as error:
        raise ConversionError(f"onnxruntime does not plan it: {shortened(error)}") from error
    content = tell(plan.model.SerializeToString(), card)
    memory = _counted(
        made.contents[0], content, x_BCHW, plan, net.peak_activation_bytes(card.config) * net.batch, limits
    )
    if not memory.kept:
        return replace(made, memory=memory)
    session = onnxruntime.InferenceSession(content, session_options(), providers=["CPUExecutionProvider"])

    def outputs(some: Images) -> Images:
        return in_batches(some, net.batch, lambda x: session.run(None, {name: x})[0])

    return replace(
        made,
        contents=(content,),
        precision="fp32",
        runtime="onnxruntime",
        on_device=False,
        outputs=outputs,
        memory=memory,
    )


def _counted(
    default: bytes, planned: bytes, x_BCHW: Images, plan: PlannedFile, default_bytes: int, limits: ConversionLimits
) -> PlannedMemory:
    """Memory and time of both files. default_bytes: the predicted peak of the default order."""
    with tempfile.TemporaryDirectory(prefix="autotailor-planned-") as name:
        folder = Path(name)
        (folder / FILES[0]).write_bytes(default)
        (folder / FILES[1]).write_bytes(planned)
        np.save(folder / FILES[2], x_BCHW)
        command = [sys.executable, "-P", "-m", "tasks.export.counting", *FILES]
        environment = os.environ | {"PYTHONPATH": python_path(os.environ), "OMP_NUM_THREADS": "1"}
        run_limited(command, folder, limits, environment, name="counting memory")
        found: dict[str, Any] = json.loads((folder / FILES[3]).read_text())
    (default_peak, planned_peak), (default_ms, planned_ms) = found["peaks"], found["times_ms"]
    kept = planned_peak < default_peak
    return PlannedMemory(
        kept=kept,
        reason=None if kept else "the planned order saves no memory",
        planned_mib=plan.schedule.peak_bytes / MIB,
        default_mib=default_bytes / MIB,
        planned_counted_mib=planned_peak / MIB,
        default_counted_mib=default_peak / MIB,
        planned_ms=planned_ms,
        default_ms=default_ms,
        optimal=plan.schedule.optimal,
        session_options=SESSION_OPTIONS if kept else {},
    )
