"""The base of all messages: strictness, types of names and shapes, errors of one line.

Shapes count the batch axis first; times are milliseconds that keep the nanosecond clock's resolution.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from profiling_agents.lines import one_line_of

Format = Literal["onnx", "ncnn", "executorch"]
Precision = Literal["fp32", "bf16", "fp16", "fp16_storage", "int8"]
Cache = Literal["warm", "cold"]
Name = Annotated[str, Field(min_length=1, max_length=256)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Checksum = Annotated[str, Field(pattern=r"^([0-9a-f]{8})?$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Dimension = Annotated[int, Field(ge=1, lt=2**31)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=8)]
MIB = 1 << 20


class AgentError(Exception):
    """Something the user can mend (unreachable, wrong token, busy, …); `str(error)` is one finished line."""

    def __init__(self, line: str) -> None:
        super().__init__(one_line_of(line))


class AgentBusyError(AgentError):
    """The device is leased by another client; it will be free later."""


class Message(BaseModel):
    """Base of all messages: immutable, unknown fields refused, NaN and infinity refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ErrorBody(Message):
    """Body of every refusal: one line for the user. `missing`: files to upload (again) first."""

    error: str
    missing: tuple[Digest, ...] = ()


def one_line(error: ValidationError) -> str:
    """The first fault of a message: its place, its description, and the number of further faults."""
    faults = error.errors(include_url=False, include_context=False)
    where = ".".join(str(part) for part in faults[0]["loc"]) or "message"
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return f"{where}: {faults[0]['msg']}{more}"
