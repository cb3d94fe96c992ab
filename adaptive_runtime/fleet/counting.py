"""Sums over the requests of a device, since they were last told."""

import math
import threading

from adaptive_runtime.fleet.messages import MOST_LOG_LATENCY, RequestSums, ServedSums

LEAST_LATENCY_MS = math.exp(-MOST_LOG_LATENCY)


class RequestCounter:
    """Counts requests that one bundle answers; any thread may. Nothing of a single request is kept."""

    def __init__(self, bundle: str | None = None) -> None:
        """bundle: digest of the open bundle that answers (`OpenBundle.digest`); None: one that no registry gave."""
        self._bundle = bundle
        self._lock = threading.Lock()
        self._sums = RequestSums()

    def answered(self, latency_ms: float, confidence: float, *, in_time: bool, agreed: bool | None = None) -> None:
        """One request more. confidence: 0 to 1; NaN is none.

        agreed: with the right answer, or that of the largest SubNet; None: unknown.
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
        """The sums so far; it begins anew."""
        with self._lock:
            taken, self._sums = self._sums, RequestSums()
        return ServedSums(bundle=self._bundle, sums=taken)
