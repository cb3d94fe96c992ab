"""The load index of a device (AdaScale, eq. 2): a weighted mean of the use of CPU, GPU and memory."""

from typing import Annotated

from pydantic import Field

from adaptive_runtime.state.sensing.state import SensedState
from profiling_agents.messages import Message

Weight = Annotated[float, Field(ge=0)]


class LoadWeights(Message):
    """Weights of the parts."""

    cpu: Weight = 1.0
    gpu: Weight = 1.0
    memory: Weight = 1.0


def load_index(state: SensedState, weights: LoadWeights | None = None) -> float | None:
    """(W_cpu · U_cpu + W_gpu · U_gpu + W_m · U_m) / W, over the known parts; None if none is known."""
    weights = weights or LoadWeights()
    parts = [(weights.cpu, state.cpu_use), (weights.gpu, state.gpu_use), (weights.memory, state.memory_use)]
    known = [(weight, use) for weight, use in parts if use is not None]
    whole = sum(weight for weight, _ in known)
    return sum(weight / whole * use for weight, use in known) if whole > 0 else None
