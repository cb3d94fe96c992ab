"""Messages between the devices of a fleet and their registry, and sums over a device's requests since its last report.

No message contains anything about single requests.
"""

import math
import threading
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from adaptive_runtime.base.files import FileMessage
from profiling_agents.messages import Digest, Message, Name

MOST_LOG_LATENCY = 25.0
"""Limit of ln(latency in ms); a larger one is invalid: the latency would be above two years."""
Count = Annotated[float, Field(ge=0, le=1e12)]
DeviceToken = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class EnrolAsked(Message):
    """A device that enrols.

    name: for people. kind: devices of one kind are compared with each other. fingerprint: digest of the properties that make
    its latencies comparable.
    """

    name: Name
    kind: Name
    fingerprint: Digest


class Enrolled(Message):
    """The device's number, and its token for all later requests."""

    device: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    token: DeviceToken


class RequestSums(Message):
    """Sums over the requests since the last report.

    log_latency: of ln(latency in ms). in_time: requests answered by their deadline. confidence: of each request's mean
    confidence. labelled: requests for which the right answer, or that of the largest SubNet, is known; agreed: those of them
    with the same answer.
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
    """Sums over the requests that one bundle answered.

    bundle: the sha256 of its manifest; None: a bundle that did not come from a registry.
    """

    WHERE: ClassVar[str] = "sums"
    NEXT_STEP: ClassVar[str] = (
        "write bundle: the sha256 of the bundle.json that answered, or null, and sums: requests, log_latency, in_time and "
        "confidence; labelled and agreed where they are known"
    )
    CONTENT: ClassVar[str] = "sums over requests"

    bundle: Digest | None
    sums: RequestSums = RequestSums()


class Telemetry(Message):
    """A report of a device.

    sequence: increases by one each time, so that duplicates count once. bundle: the bundle that answered.
    """

    sequence: int = Field(ge=1, lt=2**53)
    bundle: Digest | None
    sums: RequestSums


class AssignedBundle(Message):
    """The bundle that a device should run, by the sha256 of its manifest; None: the device's own.

    signature: of the manifest. tell_every_s: interval between reports. ahead: the registry already has this sequence number of
    the device, from another copy of its folder; the sums were not counted, and should be sent again with the next number.
    """

    bundle: Digest | None
    signature: Digest | None = None
    tell_every_s: float = Field(gt=0)
    ahead: int | None = None


LEAST_LATENCY_MS = math.exp(-MOST_LOG_LATENCY)


class RequestCounter:
    """Counts the requests that one bundle answers; any thread may call it. Nothing about single requests is kept."""

    def __init__(self, bundle: str | None = None) -> None:
        """bundle: digest of the open bundle that answers (`OpenBundle.digest`); None: a bundle from no registry."""
        self._bundle = bundle
        self._lock = threading.Lock()
        self._sums = RequestSums()

    def answered(self, latency_ms: float, confidence: float, *, in_time: bool, agreed: bool | None = None) -> None:
        """Count one more request. confidence: 0 to 1; a NaN counts as 0.

        agreed: whether the answer equals the right one, or that of the largest SubNet; None: unknown.
        """
        log_latency = min(math.log(max(LEAST_LATENCY_MS, latency_ms)), MOST_LOG_LATENCY)
        with self._lock:
            before = self._sums
            self._sums = RequestSums(
                requests=before.requests + 1,
                log_latency=before.log_latency + log_latency,
                in_time=before.in_time + in_time,
                confidence=before.confidence + min(max(0.0, confidence), 1.0),
                labelled=before.labelled + (agreed is not None),
                agreed=before.agreed + bool(agreed),
            )

    def take(self) -> ServedSums:
        """Return the sums so far and reset them."""
        with self._lock:
            taken, self._sums = self._sums, RequestSums()
        return ServedSums(bundle=self._bundle, sums=taken)
