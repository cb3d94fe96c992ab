"""What devices and their registry tell each other. Nothing in it is of a single request."""

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from adaptive_runtime.message_files import FileMessage
from profiling_agents.messages import Digest, Message, Name

MOST_LOG_LATENCY = 25.0
"""|ln(latency in ms)| beyond is no latency: it would be above two years."""
Count = Annotated[float, Field(ge=0, le=1e12)]
DeviceToken = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class EnrolAsked(Message):
    """A device that enrols. name: for people. kind: of devices that are compared with each other. fingerprint: digest of what
    makes its latencies comparable.
    """

    name: Name
    kind: Name
    fingerprint: Digest


class Enrolled(Message):
    """The device's number, and the token that it shows from now on."""

    device: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    token: DeviceToken


class RequestSums(Message):
    """Sums over requests since the last ones that were told.

    log_latency: of ln(latency in ms). in_time: answered by their deadline. confidence: of the mean confidence of each.
    labelled: requests whose right answer, or that of the largest SubNet, is known; agreed: of these, answered alike.
    """

    requests: Count = 0.0
    log_latency: float = 0.0
    in_time: Count = 0.0
    confidence: Count = 0.0
    labelled: Count = 0.0
    agreed: Count = 0.0

    def plus(self, other: "RequestSums") -> "RequestSums":
        """The sums over the requests of both."""
        return RequestSums(**{name: getattr(self, name) + getattr(other, name) for name in RequestSums.model_fields})

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        if max(self.in_time, self.confidence, self.labelled) > self.requests * (1 + 1e-9):
            raise ValueError("more than requests")
        if self.agreed > self.labelled * (1 + 1e-9):
            raise ValueError("agreed: more than labelled")
        if abs(self.log_latency) > MOST_LOG_LATENCY * self.requests:
            raise ValueError("log_latency: no latencies are so far from a millisecond")
        return self


class ServedSums(FileMessage):
    """Sums over requests that one bundle answered. bundle: the sha256 of its manifest; None: one that no registry gave."""

    WHERE: ClassVar[str] = "sums"
    NEXT_STEP: ClassVar[str] = (
        "write bundle: the sha256 of the bundle.json that answered, or null, and sums: requests, log_latency, in_time and "
        "confidence; labelled and agreed where they are known"
    )
    CONTENT: ClassVar[str] = "sums over requests"

    bundle: Digest | None
    sums: RequestSums = RequestSums()


class Telemetry(Message):
    """What a device tells. sequence: one more each time, so that what comes twice counts once. bundle: that answered."""

    sequence: int = Field(ge=1, lt=2**53)
    bundle: Digest | None
    sums: RequestSums


class AssignedBundle(Message):
    """The bundle that a device should run, by the sha256 of its manifest; None: whatever it has. signature: of the manifest.
    tell_every_s: how often the device should tell its sums. ahead: the registry has this sequence number of the device, not
    from this copy of the device's folder: the sums were not counted, and count with the number behind it.
    """

    bundle: Digest | None
    signature: Digest | None = None
    tell_every_s: float = Field(gt=0)
    ahead: int | None = None
