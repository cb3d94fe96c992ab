"""Messages of a stream: one kept connection between a home, which has requests, and a device that serves segments to it;
or between two devices, of which one gives values to the other.

All tensors are float32 in the SubNet. They cross the stream in one of three codings, without their shapes: both sides
know these from the SubNet, whose digest they compare first.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from profiling_agents.messages.base import Digest, Format, Message, Name, Nonce, Shape
from profiling_agents.messages.jobs import JobMessage

STREAM_PROTOCOL = 2
"""Raised with every change of a stream that the other side would not read."""
MOST_SEGMENTS = 256
MOST_BOUNDARY_BYTES = 1 << 28
"""Of the tensors that enter or leave segments together, in fp32."""
MOST_PROBE_BYTES = 1 << 18
MOST_WITHIN_MS = 600_000.0

ActivationCoding = Literal["fp32", "fp16", "int8"]
CODED_BYTES: dict[ActivationCoding, int] = {"fp32": 4, "fp16": 2, "int8": 1}
"""Of one value."""
RequestNumber = Annotated[int, Field(ge=0, lt=2**53)]
Milliseconds = Annotated[float, Field(ge=0.0)]
ProbeBytes = Annotated[int, Field(ge=0, le=MOST_PROBE_BYTES)]


class ServedSubNet(Message):
    """Segments of one SubNet in the order in which they run; each reads the network's input and what those before it give.

    answer: the value that the network is run for, which the last segment gives. file_bytes: size of each file by its sha256.
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
        """sha256 of all that is said here: names, shapes, and the digests of the files."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of every value that enters or leaves a segment."""
        found: dict[str, Shape] = {}
        for one in self.segments:
            assert one.output_shapes is not None, "checked"
            found |= zip(one.input_names, one.input_shapes, strict=True)
            found |= zip(one.output_names, one.output_shapes, strict=True)
        return found

    def entering(self, first: int, last: int) -> tuple[str, ...]:
        """Values that segments first … last read and do not give themselves: each once, by first use."""
        made = {name for one in self.segments[first : last + 1] for name in one.output_names}
        read = (name for one in self.segments[first : last + 1] for name in one.input_names)
        return tuple(dict.fromkeys(name for name in read if name not in made))

    def leaving(self, first: int, last: int) -> tuple[str, ...]:
        """Values of segments first … last that later segments read, or the answer."""
        later = {name for one in self.segments[last + 1 :] for name in one.input_names} | {self.answer}
        made = (name for one in self.segments[first : last + 1] for name in one.output_names)
        return tuple(name for name in made if name in later)

    def has(self, first: int, last: int) -> bool:
        """Whether first … last are segments."""
        return 0 <= first <= last < len(self.segments)


class SentActivation(Message):
    """How one tensor crosses. scale: of int8, a value is its integer times the scale; one scale for the whole tensor."""

    coding: ActivationCoding
    scale: Annotated[float, Field(gt=0.0)] = 1.0


Activations = Annotated[tuple[SentActivation, ...], Field(max_length=256)]


def coded_bytes(shapes: Iterable[Shape], activations: Iterable[SentActivation]) -> int:
    """Bytes of tensors as they cross."""
    return sum(math.prod(shape) * CODED_BYTES[one.coding] for shape, one in zip(shapes, activations, strict=True))


class Hello(Message):
    """The home's first message, with the token."""

    kind: Literal["hello"] = "hello"
    protocol: int
    token: Annotated[str, Field(max_length=256)]


class HelloDevice(Message):
    """The first message of another device, which has values for runs. proof: that a home with this device's token sent it.

    digest: of the SubNet whose values it has. `profiling_agents.streams.proofs.proof_of` makes the proof.
    """

    kind: Literal["hello_device"] = "hello_device"
    protocol: int
    digest: Digest
    proof: Digest


class Welcome(Message):
    """The device's answer to a right token: what it is, and the formats of files that it takes.

    hands: its operator allows other devices to which it may give values.
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
    """The home wants to run segments of this SubNet from now on."""

    kind: Literal["load"] = "load"
    subnet: ServedSubNet


class LoadedSubNet(Message):
    """The SubNet with this digest is ready; with files missing, it is not: they are sent, then it is asked for again."""

    kind: Literal["loaded"] = "loaded"
    digest: Digest
    missing: tuple[Digest, ...] = ()


class SentFile(Message):
    """A missing file, whose bytes follow; the answer is `KeptFile`."""

    kind: Literal["file"] = "file"
    sha256: Digest


class KeptFile(Message):
    """The device's own digest of the bytes that came."""

    kind: Literal["kept"] = "kept"
    sha256: Digest


class Receiver(Message):
    """The device that gets what leaves a run, in the place of home: its address, and what shows that home sent the giver.

    digest: of its SubNet. ticket: of its run, which waits for the values.
    """

    url: Annotated[str, Field(max_length=300)]
    digest: Digest
    proof: Digest
    ticket: Nonce


class RunSegments(Message):
    """Run segments first … last on `ServedSubNet.entering`, whose bytes follow in order. coding: of the answer's tensors.

    ticket: no tensors follow; they come with this ticket, from another device or from home. receiver: what leaves the run goes
    there. within_ms: for values to come, and for values to be given.
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
    """Values that another device has taken: their bytes; the time in all; and that from the head of their frame to the end."""

    bytes: Annotated[int, Field(ge=0)]
    total_ms: Milliseconds
    received_ms: Milliseconds


class RanSegments(Message):
    """`ServedSubNet.leaving`, whose bytes follow in order.

    received_ms: from the head of the values to their last byte. waited_ms, computed_ms: for the processor, and on it.
    given: the values are at the receiver, and none follow. not_given: why they follow although there is a receiver.
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
    """The values that a run waited for did not come in time; nobody waits for them any more."""

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
    """Bytes that mean nothing follow; so many of them come back."""

    kind: Literal["probe"] = "probe"
    request: RequestNumber
    bytes: ProbeBytes
    back: ProbeBytes


class ReturnedProbe(Message):
    """The answer to a probe, with bytes that mean nothing. received_ms: from the head of the probe to its last byte."""

    kind: Literal["probed"] = "probed"
    request: RequestNumber
    bytes: ProbeBytes
    received_ms: Milliseconds


class RefusedStream(Message):
    """The last message of a connection: why it ends. final: the same would be refused again."""

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
    """Service to child: load a SubNet, or run segments of the SubNet that is loaded on the tensors that follow."""

    load: ServedSubNet | None = None
    first: int = 0
    last: int = 0
    tensors: Activations = ()
    coding: ActivationCoding = "fp32"
