"""Inference runtimes an agent can drive. A new one: a module with a `Backend`, an entry here, and a test."""

from collections.abc import Callable

from profiling_agents.backends.base import Backend
from profiling_agents.messages import AgentError


def _ncnn(threads: int) -> Backend:
    from profiling_agents.backends.ncnn import NcnnBackend

    return NcnnBackend(threads)


def _onnxruntime(threads: int) -> Backend:
    from profiling_agents.backends.onnxruntime import OnnxRuntimeBackend

    return OnnxRuntimeBackend(threads)


BACKENDS: dict[str, Callable[[int], Backend]] = {"ncnn": _ncnn, "onnxruntime": _onnxruntime}
"""Makers by name; a runtime is imported only when it is chosen."""


def open_backend(name: str, threads: int) -> Backend:
    """The backend of this name; AgentError for an unknown name or a runtime that is not installed."""
    if name not in BACKENDS:
        raise AgentError(f"backend: got '{name}'; allowed: {', '.join(sorted(BACKENDS))}")
    try:
        return BACKENDS[name](threads)
    except ImportError as error:
        raise AgentError(f"backend '{name}': {error}; install the Python package '{name}' on the device") from error
