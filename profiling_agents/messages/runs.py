"""Running a model once for its outputs; requests and replies of the child process."""

from typing import Annotated, Literal

from pydantic import Field

from profiling_agents.messages.base import Message
from profiling_agents.messages.device import RuntimeInfo, Sandbox
from profiling_agents.messages.jobs import JobMessage
from profiling_agents.messages.results import Timing
from profiling_agents.messages.settings import MeasureSettings
from profiling_agents.messages.streams import SentActivation

MAX_TENSORS_MIB = 256
"""Limit for the inputs, and for the outputs, of one run."""
TENSOR_TYPES = ("float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool")


class TensorHeader(Message):
    """One tensor of a frame: little-endian, C order."""

    dtype: Literal["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"]
    shape: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**31)], ...], Field(max_length=8)]


class RunRequest(Message):
    """Header of a run: the job and its inputs, whose bytes follow in order."""

    job: JobMessage
    tensors: tuple[TensorHeader, ...] = Field(max_length=64)


class RunResult(Message):
    """Header of a run's answer: the outputs, whose bytes follow in order; or the reason of the failure."""

    tensors: tuple[TensorHeader, ...] = ()
    reason: str | None = None


class ChildRequest(Message):
    """Service to child: time one model, or run it once on the tensors that follow."""

    job: JobMessage
    settings: MeasureSettings | None = None
    tensors: tuple[TensorHeader, ...] = ()


class ChildReply(Message):
    """Child to service: the runtime and its sandbox (first frame), a timing, outputs, or the reason of a failure.

    activations: the coding of the outputs of segments. computed_ms: time to compute and code them.
    """

    runtime: RuntimeInfo | None = None
    sandbox: Sandbox = Sandbox()
    timing: Timing | None = None
    tensors: tuple[TensorHeader, ...] = ()
    activations: tuple[SentActivation, ...] = ()
    computed_ms: float = 0.0
    reason: str | None = None
    out_of_memory: bool = False
