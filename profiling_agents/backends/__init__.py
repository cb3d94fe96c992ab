"""Inference runtimes an agent can drive. A new one: a module with a `Backend`, an entry here, and a test."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from importing import later_names
from profiling_agents.backends.base import Backend, RuntimeOptions
from profiling_agents.messages import AgentError

if TYPE_CHECKING:
    from profiling_agents.backends.executorch import ExecuTorchBackend
    from profiling_agents.backends.ncnn import NcnnBackend
    from profiling_agents.backends.ncnn_adb import NcnnAdbBackend
    from profiling_agents.backends.onnxruntime import OnnxRuntimeBackend
    from profiling_agents.backends.openvino import OpenVinoBackend
    from profiling_agents.backends.torch import TorchBackend
else:
    globals().update(later_names(__file__))

BACKENDS: dict[str, Callable[[RuntimeOptions], Backend]] = {
    "executorch": ExecuTorchBackend,
    "ncnn": NcnnBackend,
    "ncnn-adb": NcnnAdbBackend,
    "onnxruntime": OnnxRuntimeBackend,
    "openvino": OpenVinoBackend,
    "torch": TorchBackend,
}
"""Classes by name; a runtime is imported only when it is chosen."""

EXTRAS = frozenset({"executorch", "openvino"})
"""Backends whose runtime is an optional extra of the same name."""

BACKEND_MODULES = {
    "executorch": ("torch", "executorch"),
    "ncnn": ("ncnn",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("onnx", "openvino"),
    "torch": ("onnx", "onnx2torch", "torch"),
}
"""Python packages that a backend needs besides the agent's own. Each is installed under the name by which it is imported."""

ELSEWHERE = frozenset({"ncnn-adb"})
"""Backends whose models run on another machine: no sandbox is set up around the process that talks to it."""


def open_backend(options: RuntimeOptions) -> Backend:
    """The backend of this name. AgentError for an unknown name, an unsupported option, or a runtime that is not installed."""
    name = options.backend
    if name not in BACKENDS:
        raise AgentError(f"backend: got '{name}'; allowed: {', '.join(sorted(BACKENDS))}")
    try:
        return BACKENDS[name](options)
    except ImportError as error:
        raise AgentError(f"backend '{name}': {error}; {installation(name)}") from error


def installation(name: str) -> str:
    """How to install the runtime of a backend."""
    bare = f"pip install {' '.join(BACKEND_MODULES.get(name, (name,)))}"
    if name in EXTRAS:
        return f"install it in the clone with: pip install -e '.[{name}]' (on a bare device: {bare})"
    return f"install it on the device with: {bare}"
