"""Inference runtimes an agent can drive. A new one: a module with a `Backend`, an entry here, and a test."""

from collections.abc import Callable

from profiling_agents.backends.base import Backend, RuntimeOptions
from profiling_agents.messages import AgentError


def _executorch(options: RuntimeOptions) -> Backend:
    from profiling_agents.backends.executorch import ExecuTorchBackend

    return ExecuTorchBackend(options)


def _ncnn(options: RuntimeOptions) -> Backend:
    from profiling_agents.backends.ncnn import NcnnBackend

    return NcnnBackend(options)


def _ncnn_adb(options: RuntimeOptions) -> Backend:
    from profiling_agents.backends.ncnn_adb import NcnnAdbBackend

    return NcnnAdbBackend(options)


def _onnxruntime(options: RuntimeOptions) -> Backend:
    from profiling_agents.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(options)


def _openvino(options: RuntimeOptions) -> Backend:
    from profiling_agents.backends.openvino import OpenVinoBackend

    return OpenVinoBackend(options)


def _torch(options: RuntimeOptions) -> Backend:
    from profiling_agents.backends.torch import TorchBackend

    return TorchBackend(options)


BACKENDS: dict[str, Callable[[RuntimeOptions], Backend]] = {
    "executorch": _executorch,
    "ncnn": _ncnn,
    "ncnn-adb": _ncnn_adb,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "torch": _torch,
}
"""Makers by name; a runtime is imported only when it is chosen."""

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
