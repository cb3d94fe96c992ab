"""Inference requests of the Open Inference Protocol v2 (REST), from their bytes to the bytes of their answers; refusals.

Unknown fields and parameters are refused: a misspelt deadline would otherwise be ignored. Tensors are JSON, or JSON
with binary values behind it (the binary tensor data extension), little-endian, in row-major order. Both directions are
in one place: `unpack` and `values_of` read the output of `pack`.

Legend: N samples, C channels, H height, W width.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError

from adaptive_runtime.bundle.bundles import TakenSamples
from adaptive_runtime.model.answers import (
    AS_IT_IS,
    SEGMENTATION,
    SEVERAL_CLASSES,
    TAGGING,
    UPSCALES,
    ModelAnswer,
    targets_of,
)
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.samples.inputs import packed
from profiling_agents.messages import Message, one_line


class RequestRefused(Exception):
    """One line for the client. outcome: its category in the metrics. retry_after_s: with 429, time until room is expected."""

    def __init__(self, status: int, line: str, *, outcome: str = "refused", retry_after_s: float = 1.0) -> None:
        super().__init__(" ".join(line.split()))
        self.status, self.outcome, self.retry_after_s = status, outcome, retry_after_s


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
    if not np.isfinite(found).all():
        raise RequestRefused(400, f"{where}: has NaN or infinite values; allowed: finite ones")
    return found.reshape(tensor.shape)


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


INPUT = "input"
DATATYPES_OUT = {
    "logits": "FP32",
    "confidence": "FP64",
    "boxes": "FP32",
    "scores": "FP32",
    "images": "FP32",
    "values": "FP32",
}
"""The other outputs are classes, INT64."""
NOTHING = -1
"""Class of padding rows, for images with fewer boxes than others of the batch."""
MOST_SAMPLES = 256


@dataclass(frozen=True)
class InferenceFormat:
    """Input and output of a model: samples, number of classes (None: unknown). form: of its files.

    problem: as named in the bundle's manifest. targets: names of the targets, if samples have several classes. values: shape of
    an output that is given as it is.
    """

    taken: TakenSamples
    classes: int | None
    form: str
    problem: str | None = None
    targets: tuple[str, ...] = ()
    values: tuple[int, ...] = ()

    @classmethod
    def of(cls, model: DeployedModel) -> "InferenceFormat":
        """From the first SubNet of the bundle: all take samples in the data's own size."""
        first, form = model.pool.bundle.manifest.subnets[0], model.pool.form
        shape = first.nets[form].output.shape if form in first.nets else ()
        classes = shape[-1] if shape else None
        manifest = model.pool.bundle.manifest
        targets = tuple(targets_of(manifest.classes)) if manifest.problem == SEVERAL_CLASSES else ()
        return cls(model.taken, classes, form, manifest.problem, targets, tuple(one or -1 for one in shape[1:]))

    @cached_property
    def inputs(self) -> dict[str, TakenSamples]:
        """Each input by name."""
        return {INPUT: self.taken} if self.taken.inputs is None else dict(self.taken.inputs)

    @cached_property
    def datatypes(self) -> dict[str, str]:
        """The datatype of each input by name."""
        return {name: NAMES[one.dtype] for name, one in self.inputs.items()}

    @cached_property
    def outputs(self) -> dict[str, list[int]]:
        """Shapes of the possible outputs, by name; −1: any size."""
        if self.problem is None:
            return {"logits": [-1, self.classes or -1], "classes": [-1], "confidence": [-1]}
        if self.problem == SEVERAL_CLASSES:
            return {"logits": [-1, self.classes or -1], **{name: [-1] for name in self.targets}}
        if (upscale := UPSCALES.get(self.problem)) is not None:
            channels, height, width = self.taken.shape
            return {"images": [-1, channels, upscale * height, upscale * width]}
        if self.problem == TAGGING:
            return {"classes": [-1, *self.taken.shape]}
        if self.problem in AS_IT_IS:
            return {"values": [-1, *self.values]}
        if self.problem == SEGMENTATION:
            return {"classes": [-1, *self.taken.shape[1:]]}
        return {"boxes": [-1, -1, 4], "scores": [-1, -1], "classes": [-1, -1]}

    def require(self, shape: tuple[int, ...], name: str = INPUT) -> None:
        """Refuse samples of another shape. RequestRefused (400)."""
        wanted = self.inputs[name].shape
        if len(shape) != 1 + len(wanted) or shape[1:] != wanted or not 1 <= shape[0] <= MOST_SAMPLES:
            sizes = ", ".join(map(str, wanted))
            got = f"input '{name}': shape {shown(list(shape))}"
            raise RequestRefused(400, f"{got}; allowed: [N, {sizes}], N from 1 to {MOST_SAMPLES}")

    def require_words(self, values: NDArray[Any]) -> None:
        """Refuse numbers outside of the vocabulary; values of images are not checked. RequestRefused (400)."""
        for name, one in self.inputs.items():
            words = None if one.words is None else values if self.taken.inputs is None else values[name]
            if words is not None and (fault := one.fault(words)):
                raise RequestRefused(400, f"input '{name}': {fault}; allowed: from 0, below {one.words}")

    def metadata(self, name: str, version: str) -> dict[str, Any]:
        """The model's metadata in the protocol's form; −1: any size."""
        return {
            "name": name,
            "versions": [version],
            "platform": f"autotailor_{self.form}",
            "inputs": [
                {"name": one, "datatype": self.datatypes[one], "shape": [-1, *taken.shape]}
                for one, taken in self.inputs.items()
            ],
            "outputs": [
                {"name": one, "datatype": DATATYPES_OUT.get(one, "INT64"), "shape": shape}
                for one, shape in self.outputs.items()
            ],
        }


class ReadRequest(NamedTuple):
    """A valid request. images_NCHW: its samples; several inputs are packed."""

    message: InferRequest
    images_NCHW: NDArray[Any]


def read(body: bytes, length: str | None, wanted: InferenceFormat) -> ReadRequest:
    """Parse and check a request. RequestRefused (400)."""
    message, binary = unpack(body, length)
    names = [one.name for one in message.inputs]
    if sorted(names) != sorted(wanted.inputs):
        one_alone = list(wanted.inputs) == [INPUT]
        allowed = f"one, of the name '{INPUT}'" if one_alone else f"{', '.join(wanted.inputs)}, each once"
        raise RequestRefused(400, f"inputs: {shown(', '.join(names) or 'none')}; allowed: {allowed}")
    for tensor in message.inputs:
        if tensor.datatype != (datatype := wanted.datatypes[tensor.name]):
            got = f"input '{tensor.name}': datatype {shown(tensor.datatype)}"
            raise RequestRefused(400, f"{got}; allowed: {datatype}")
        wanted.require(tensor.shape, tensor.name)
    if len({tensor.shape[0] for tensor in message.inputs}) > 1:
        got = ", ".join(f"{tensor.shape[0]} of '{tensor.name}'" for tensor in message.inputs)
        raise RequestRefused(400, f"inputs: samples: {shown(got)}; allowed: as many of each")
    outputs = [one.name for one in message.outputs]
    if unknown := [name for name in outputs if name not in wanted.outputs]:
        raise RequestRefused(400, f"output '{shown(unknown[0])}'; allowed: {', '.join(wanted.outputs)}")
    if len(set(outputs)) < len(outputs):
        raise RequestRefused(400, "outputs: one is there twice; allowed: each once")
    blobs = split(message.inputs, binary)
    found = {one.name: values_of(one, blob) for one, blob in zip(message.inputs, blobs, strict=True)}
    values = found[INPUT] if wanted.taken.inputs is None else packed({name: found[name] for name in wanted.inputs})
    wanted.require_words(values)
    return ReadRequest(message, values)


def _values(answer: ModelAnswer) -> dict[str, NDArray[Any]]:
    """The tensors of an answer by name.

    Boxes are (N, M, 4) with M the largest number in an image; padding rows have class `NOTHING`.
    """
    if answer.labels is not None:
        return {"logits": answer.logits, **answer.labels}
    if answer.images is not None:
        return {"images": answer.images}
    if answer.masks is not None:
        return {"classes": answer.masks}
    if answer.values is not None:
        return {"values": answer.values}
    if answer.tags is not None:
        return {"classes": answer.tags}
    if answer.detections is None:
        return {"logits": answer.logits, "classes": answer.classes, "confidence": answer.confidence}
    shape = (len(answer.detections), max(len(one.scores_N) for one in answer.detections))
    boxes, scores = np.zeros((*shape, 4), np.float32), np.zeros(shape, np.float32)
    classes = np.full(shape, NOTHING, np.int64)
    for row, one in enumerate(answer.detections):
        found = len(one.scores_N)
        boxes[row, :found], scores[row, :found], classes[row, :found] = one.boxes_N4, one.scores_N, one.classes_N
    return {"boxes": boxes, "scores": scores, "classes": classes}


def written(
    request: InferRequest, answer: ModelAnswer, waited_ms: float, late_ms: float, *, model: tuple[str, str]
) -> PackedBody:
    """The answer to a request. model: name and version. late_ms: after the deadline; 0: in time. RequestRefused (500)."""
    parameters: dict[str, Any] = {
        "subnet": by_sample(answer.subnets),
        "exit": by_sample(answer.exits),
        "format": by_sample(answer.formats),
        "latency_ms": answer.latency_ms,
        "waited_ms": waited_ms,
    }
    if late_ms > 0:
        parameters["late_ms"] = late_ms
    if answer.devices:
        parameters["devices"] = ",".join(answer.devices)
    head = {"model_name": model[0], "model_version": model[1], "parameters": parameters}
    if request.id:
        head["id"] = request.id
    values = _values(answer)
    of_all = request.parameters.binary_data_output
    wanted = {one.name: one.parameters.binary_data for one in request.outputs} or dict.fromkeys(values)
    tensors = [NamedTensor(name, values[name], of_all if binary is None else binary) for name, binary in wanted.items()]
    try:
        return pack(head, "outputs", tensors)
    except ValueError as error:
        line = "the answer has NaN or infinite values, which JSON has no number for; ask for binary outputs"
        raise RequestRefused(500, line, outcome="failed") from error


def by_sample(names: Sequence[str]) -> str:
    """One name if it is the same for all samples, else the names of all samples."""
    return names[0] if len(set(names)) == 1 else ",".join(names)
