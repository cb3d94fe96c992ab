"""Messages of a stream between a coordinator and devices that serve segments, and messages of the child process.

A stream is one kept connection, over which a coordinator sends requests to a device, or one device gives values to
another. All tensors are float32 in the SubNet. They cross the stream in one of three codings, without their shapes:
both sides know the shapes from the SubNet, whose digest they compare first. The child process runs a model once for its
outputs.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from profiling_agents.messages.device import Digest, Format, Message, Name, Nonce, RuntimeInfo, Sandbox, Shape
from profiling_agents.messages.jobs import JobMessage, MeasureSettings, Timing

STREAM_PROTOCOL = 2
"""Raised with every incompatible change of a stream."""
MOST_SEGMENTS = 256
MOST_BOUNDARY_BYTES = 1 << 28
"""Limit for the fp32 bytes of all tensors that enter or leave segments together."""
MOST_PROBE_BYTES = 1 << 18
MOST_WITHIN_MS = 600_000.0

ActivationCoding = Literal["fp32", "fp16", "int8"]
CODED_BYTES: dict[ActivationCoding, int] = {"fp32": 4, "fp16": 2, "int8": 1}
"""Bytes per value."""
RequestNumber = Annotated[int, Field(ge=0, lt=2**53)]
Milliseconds = Annotated[float, Field(ge=0.0)]
ProbeBytes = Annotated[int, Field(ge=0, le=MOST_PROBE_BYTES)]


class ServedSubNet(Message):
    """Segments of one SubNet in running order; each reads the network's input and outputs of segments before it.

    answer: the network's result, an output of the last segment. file_bytes: size of each file by its sha256.
    """

    segments: Annotated[tuple[JobMessage, ...], Field(min_length=1, max_length=MOST_SEGMENTS)]
    input: Name
    answer: Name
    file_bytes: dict[Digest, Annotated[int, Field(ge=1)]]

    @model_validator(mode="after")
    def _segments_read_what_is_there(self) -> Self:
        shapes: dict[str, Shape] = {}
        for number, segment in enumerate(self.segments):
            if segment.output_shapes is None:
                raise ValueError(f"segment {number} states no output shapes")
            for name, shape in zip(segment.input_names, segment.input_shapes, strict=True):
                known = shapes.setdefault(name, shape) if name == self.input else shapes.get(name)
                if known != shape:
                    got = "nothing before it gives" if known is None else f"is {known} elsewhere, not {shape}"
                    raise ValueError(f"segment {number} reads '{name}', which {got}")
            for name, shape in zip(segment.output_names, segment.output_shapes, strict=True):
                if name in shapes or name == self.input:
                    raise ValueError(f"segment {number} gives '{name}', which is there already")
                shapes[name] = shape
        if self.answer not in self.segments[-1].output_names:
            raise ValueError(f"the last segment does not give the answer '{self.answer}'")
        if self.input not in shapes:
            raise ValueError(f"no segment reads the input '{self.input}'")
        if {digest for segment in self.segments for digest in segment.files} != set(self.file_bytes):
            raise ValueError("file_bytes does not name the files of the segments")
        if 4 * sum(map(math.prod, shapes.values())) > MOST_BOUNDARY_BYTES:
            raise ValueError(f"its tensors have more than {MOST_BOUNDARY_BYTES} bytes")
        return self

    @property
    def digest(self) -> str:
        """sha256 of the whole message: names, shapes, and the digests of the files."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shape of every value that enters or leaves a segment."""
        found: dict[str, Shape] = {}
        for one in self.segments:
            assert one.output_shapes is not None, "checked"
            found |= zip(one.input_names, one.input_shapes, strict=True)
            found |= zip(one.output_names, one.output_shapes, strict=True)
        return found

    def entering(self, first: int, last: int) -> tuple[str, ...]:
        """Values that segments first … last read from outside: each once, by first use."""
        made = {name for one in self.segments[first : last + 1] for name in one.output_names}
        read = (name for one in self.segments[first : last + 1] for name in one.input_names)
        return tuple(dict.fromkeys(name for name in read if name not in made))

    def leaving(self, first: int, last: int) -> tuple[str, ...]:
        """Outputs of segments first … last that later segments read, or the answer."""
        later = {name for one in self.segments[last + 1 :] for name in one.input_names} | {self.answer}
        made = (name for one in self.segments[first : last + 1] for name in one.output_names)
        return tuple(name for name in made if name in later)

    def has(self, first: int, last: int) -> bool:
        """Whether first … last are segments of this SubNet."""
        return 0 <= first <= last < len(self.segments)


class SentActivation(Message):
    """The coding of one tensor. scale: for int8, a value is its integer times the scale; one scale for the whole tensor."""

    coding: ActivationCoding
    scale: Annotated[float, Field(gt=0.0)] = 1.0


Activations = Annotated[tuple[SentActivation, ...], Field(max_length=256)]


def coded_bytes(shapes: Iterable[Shape], activations: Iterable[SentActivation]) -> int:
    """Bytes of the coded tensors."""
    return sum(math.prod(shape) * CODED_BYTES[one.coding] for shape, one in zip(shapes, activations, strict=True))


class Hello(Message):
    """The coordinator's first message, with the token."""

    kind: Literal["hello"] = "hello"
    protocol: int
    token: Annotated[str, Field(max_length=256)]


class HelloDevice(Message):
    """The first message of another device that gives values. proof: shows that a coordinator with this device's token sent it.

    digest: the SubNet of the values. `profiling_agents.streams.proof_of` makes the proof.
    """

    kind: Literal["hello_device"] = "hello_device"
    protocol: int
    digest: Digest
    proof: Digest


class Welcome(Message):
    """The device's answer to a right token: its description, and the file formats that it takes.

    hands: the device's operator allows it to give values to other devices.
    """

    kind: Literal["welcome"] = "welcome"
    protocol: int
    backend: Name
    precision: Name
    threads: int
    fingerprint: Name
    formats: tuple[Format, ...]
    hands: bool = False


class LoadSubNet(Message):
    """The coordinator wants to run segments of this SubNet from now on."""

    kind: Literal["load"] = "load"
    subnet: ServedSubNet


class LoadedSubNet(Message):
    """The SubNet with this digest is ready, or files are missing: the coordinator sends them and asks again."""

    kind: Literal["loaded"] = "loaded"
    digest: Digest
    missing: tuple[Digest, ...] = ()


class SentFile(Message):
    """A missing file, whose bytes follow; the answer is `KeptFile`."""

    kind: Literal["file"] = "file"
    sha256: Digest


class KeptFile(Message):
    """The device's own digest of the received bytes."""

    kind: Literal["kept"] = "kept"
    sha256: Digest


class Receiver(Message):
    """The device that takes the outputs of a run instead of the coordinator: its address, and a proof for the giving device.

    digest: its SubNet. ticket: identifies its run that waits for the values.
    """

    url: Annotated[str, Field(max_length=300)]
    digest: Digest
    proof: Digest
    ticket: Nonce


class RunSegments(Message):
    """Run segments first … last on `ServedSubNet.entering`, whose bytes follow in order. coding: for the answer's tensors.

    ticket: no tensors follow; another device or the coordinator sends them with this ticket. receiver: device that takes the
    outputs. within_ms: time limit for receiving values, and for giving them.
    """

    kind: Literal["run"] = "run"
    request: RequestNumber
    first: int
    last: int
    tensors: Activations
    coding: ActivationCoding
    ticket: Nonce | None = None
    receiver: Receiver | None = None
    within_ms: Annotated[float, Field(ge=0.0, le=MOST_WITHIN_MS)] = 0.0


class GivenTimes(Message):
    """Values that another device took: bytes; total time; and the time from the head of their frame to its end."""

    bytes: Annotated[int, Field(ge=0)]
    total_ms: Milliseconds
    received_ms: Milliseconds


class RanSegments(Message):
    """`ServedSubNet.leaving`, whose bytes follow in order.

    received_ms: from the head of the values to their last byte. waited_ms, computed_ms: time waiting for and on the processor.
    given: the receiver has the values, and none follow. not_given: why they follow although the run has a receiver.
    """

    kind: Literal["ran"] = "ran"
    request: RequestNumber
    tensors: Activations
    received_ms: Milliseconds
    waited_ms: Milliseconds
    computed_ms: Milliseconds
    given: GivenTimes | None = None
    not_given: Annotated[str, Field(max_length=300)] = ""


class MissedValues(Message):
    """The values for a run did not arrive in time; the run waits no longer."""

    kind: Literal["missed"] = "missed"
    request: RequestNumber


class GivenValues(Message):
    """Values for a run that waits with this ticket, whose bytes follow in the order of `ServedSubNet.entering`."""

    kind: Literal["give"] = "give"
    request: RequestNumber
    ticket: Nonce
    tensors: Activations


class TookValues(Message):
    """The answer to `GivenValues`. received_ms: from the head of the values to their last byte."""

    kind: Literal["took"] = "took"
    request: RequestNumber
    received_ms: Milliseconds


class SentProbe(Message):
    """Meaningless bytes follow; `back` bytes are to come back."""

    kind: Literal["probe"] = "probe"
    request: RequestNumber
    bytes: ProbeBytes
    back: ProbeBytes


class ReturnedProbe(Message):
    """The answer to a probe, with meaningless bytes. received_ms: from the head of the probe to its last byte."""

    kind: Literal["probed"] = "probed"
    request: RequestNumber
    bytes: ProbeBytes
    received_ms: Milliseconds


class RefusedStream(Message):
    """The last message of a connection, with the reason of its end. final: the same request would be refused again."""

    kind: Literal["refused"] = "refused"
    line: Annotated[str, Field(max_length=1024)]
    final: bool = True


HomeMessage = Annotated[
    Hello | HelloDevice | LoadSubNet | SentFile | RunSegments | GivenValues | SentProbe,
    Field(discriminator="kind"),
]
DeviceMessage = Annotated[
    Welcome | LoadedSubNet | KeptFile | RanSegments | MissedValues | TookValues | ReturnedProbe | RefusedStream,
    Field(discriminator="kind"),
]
HOME_MESSAGES: TypeAdapter[HomeMessage] = TypeAdapter(HomeMessage)
DEVICE_MESSAGES: TypeAdapter[DeviceMessage] = TypeAdapter(DeviceMessage)


class ChildSegments(Message):
    """Service to child: load a SubNet, or run segments of the loaded SubNet on the tensors that follow."""

    load: ServedSubNet | None = None
    first: int = 0
    last: int = 0
    tensors: Activations = ()
    coding: ActivationCoding = "fp32"


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
