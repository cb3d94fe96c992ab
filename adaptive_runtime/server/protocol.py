"""Messages of the Open Inference Protocol v2 (REST), tensors on the wire, and refusals with status and reason.

Unknown fields and parameters are refused: a misspelt deadline would otherwise be ignored. Tensors are JSON, or JSON
with binary values behind it (the binary tensor data extension), little-endian, in row-major order. Both directions are
in one place: `unpack` and `values_of` read the output of `pack`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError

from profiling_agents.messages import Message, one_line


class RequestRefused(Exception):
    """One line for the client. outcome: its category in the metrics. retry_after_s: with 429, time until room is expected."""

    def __init__(self, status: int, line: str, *, outcome: str = "refused", retry_after_s: float = 1.0) -> None:
        super().__init__(" ".join(line.split()))
        self.status, self.outcome, self.retry_after_s = status, outcome, retry_after_s


VERSION = "2"
BINARY = "binary_tensor_data"
LENGTH_HEADER = "Inference-Header-Content-Length"
MOST_DEADLINE_MS = 600_000.0
Size = Annotated[int, Field(ge=0)]


class ProtocolMessage(Message):
    """Base: no conversion between kinds of JSON values."""

    model_config = ConfigDict(strict=True)


class TensorParameters(ProtocolMessage):
    """binary_data_size: bytes of the tensor behind the JSON; None: its values are in `data`."""

    binary_data_size: Size | None = None


class SentTensor(ProtocolMessage):
    """A tensor on the wire. data: its values, nested as its shape or flat; None: they follow the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: TensorParameters = TensorParameters()
    data: Any = None


class OutputParameters(ProtocolMessage):
    """binary_data: whether the values follow the JSON; None: the request's setting for all outputs."""

    binary_data: bool | None = None


class WantedOutput(ProtocolMessage):
    """An output that the client asks for."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferParameters(ProtocolMessage):
    """deadline_ms: from the arrival of the request to its answer; None: the service's.

    binary_data_output: for all outputs. subnet: the digest of the SubNet that should answer; None: the serving one.
    """

    deadline_ms: Annotated[float, Field(gt=0, le=MOST_DEADLINE_MS)] | None = None
    subnet: str | None = None
    binary_data_output: bool = False


class InferRequest(ProtocolMessage):
    """outputs: empty: all outputs."""

    id: str = ""
    parameters: InferParameters = InferParameters()
    inputs: tuple[SentTensor, ...]
    outputs: tuple[WantedOutput, ...] = ()


DATATYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "FP64": np.dtype("<f8"), "INT64": np.dtype("<i8")}
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
MOST_SHOWN = 80
Tensor = NDArray[Any]


class NamedTensor(NamedTuple):
    """A tensor to be sent. binary: its values follow the JSON."""

    name: str
    values: Tensor
    binary: bool


class PackedBody(NamedTuple):
    """A body, and the length of its JSON if binary values follow; None: it is JSON alone."""

    content: bytes
    json_bytes: int | None


def pack(head: Mapping[str, Any], key: str, tensors: Sequence[NamedTensor]) -> PackedBody:
    """A message with tensors under `key`. ValueError: NaN or an infinite value, which JSON cannot represent."""
    rows, blobs = [], []
    for name, values, binary in tensors:
        row: dict[str, Any] = {"name": name, "datatype": NAMES[values.dtype], "shape": list(values.shape)}
        if binary:
            blobs.append(np.ascontiguousarray(values).tobytes())
            row["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            row["data"] = values.ravel().tolist()
        rows.append(row)
    text = json.dumps({**head, key: rows}, allow_nan=False, separators=(",", ":")).encode()
    return PackedBody(text + b"".join(blobs), len(text) if blobs else None)


def unpack(body: bytes, length: str | None) -> tuple[InferRequest, memoryview]:
    """The message of a request, and the bytes after it. length: the header with the length of the JSON. RequestRefused."""
    json_bytes = len(body) if length is None else _length(length, len(body))
    try:
        request = InferRequest.model_validate_json(body[:json_bytes])
    except ValidationError as error:
        raise RequestRefused(400, one_line(error)) from error
    return request, memoryview(body)[json_bytes:]


def split(tensors: Sequence[SentTensor], binary: memoryview) -> list[memoryview | None]:
    """The binary values of each tensor, in order; None: it has none. RequestRefused: sizes that do not match the body."""
    sizes = [tensor.parameters.binary_data_size for tensor in tensors]
    named = sum(size or 0 for size in sizes)
    if named != len(binary):
        raise RequestRefused(400, f"binary_data_size: {shown(named)} bytes in all; the body has {len(binary)}")
    found: list[memoryview | None] = []
    start = 0
    for size in sizes:
        found.append(None if size is None else binary[start : start + size])
        start += size or 0
    return found


def values_of(tensor: SentTensor, binary: memoryview | None) -> Tensor:
    """The values of a tensor in its shape. RequestRefused: wrong type or number of values, NaN or infinite.

    Sizes are compared before any array is allocated.
    """
    where = f"tensor '{shown(tensor.name)}'"
    dtype = DATATYPES.get(tensor.datatype)
    if dtype is None:
        got = f"{where}: datatype {shown(tensor.datatype)}"
        raise RequestRefused(400, f"{got}; allowed: {', '.join(DATATYPES)}")
    if min(tensor.shape, default=0) < 0:
        raise RequestRefused(400, f"{where}: shape {shown(list(tensor.shape))}; allowed: sizes from 0 on")
    count = math.prod(tensor.shape)
    if binary is not None and tensor.data is not None:
        raise RequestRefused(400, f"{where}: has data and binary_data_size; allowed: one of them")
    found = _from_json(where, tensor.data, dtype) if binary is None else _from_bytes(where, binary, dtype, count)
    if found.size != count or found.shape not in (tensor.shape, (count,)):
        got = f"{where}: data of shape {shown(list(found.shape))}"
        raise RequestRefused(400, f"{got}; allowed: {shown(list(tensor.shape))}, or flat")
    return require_finite(where, found).reshape(tensor.shape)


def require_finite(where: str, values: Tensor) -> Tensor:
    """The unchanged values. RequestRefused (400): some are NaN or infinite."""
    if not np.isfinite(values).all():
        raise RequestRefused(400, f"{where}: has NaN or infinite values; allowed: finite ones")
    return values


def shown(value: object) -> str:
    """A client's value, shortened to one line."""
    text = " ".join(str(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def _length(length: str, most: int) -> int:
    if not (length.isascii() and length.isdigit() and len(length) < 19 and int(length) <= most):
        raise RequestRefused(400, f"header with the length of the JSON: {shown(length)}; allowed: 0 to {most}")
    return int(length)


def _from_bytes(where: str, binary: memoryview, dtype: np.dtype[Any], count: int) -> Tensor:
    if count * dtype.itemsize != len(binary):
        got = f"{where}: {len(binary)} binary bytes"
        raise RequestRefused(400, f"{got}; allowed for its shape: {shown(count * dtype.itemsize)}")
    return np.frombuffer(binary, dtype)


def _from_json(where: str, data: Any, dtype: np.dtype[Any]) -> Tensor:
    allowed = "a list of numbers, nested as the shape or flat"
    try:
        found = np.array(data) if isinstance(data, list) else None
    except (ValueError, OverflowError):
        found = None
    if found is None or (found.dtype.kind not in "iuf" and found.size):
        raise RequestRefused(400, f"{where}: data is no such list; allowed: {allowed}")
    if dtype.kind == "i" and found.dtype.kind == "f" and found.size:
        raise RequestRefused(400, f"{where}: data has fractions; allowed: whole numbers")
    with np.errstate(over="ignore"):
        return found.astype(dtype)
