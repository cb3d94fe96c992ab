"""Sums over the requests of a device since the last report."""

import math
import threading

from adaptive_runtime.fleet.messages import MOST_LOG_LATENCY, RequestSums, ServedSums

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
