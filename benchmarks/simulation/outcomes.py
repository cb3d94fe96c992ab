"""What became of requests, and what it was worth: an answer that is late counts as a wrong one.

Legend: R requests.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class RequestEnds(IntEnum):
    """Every request ends in one of these ways. REJECTED: by a full queue, or its deadline was over before its turn."""

    IN_TIME = 0
    LATE = 1
    REJECTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOutcome:
    """ends_R: of `RequestEnds`. accuracy_R: of the variant that answered; 0 where none did. latency_ms_R: from arrival to
    answer; NaN where there is no answer. switches: of variants, the start not counted. rows_R: variants that served, by their
    rows; -1 where none did; None: not told. besides_R: rows that ran as well, and whose answer was not used; -1: none.
    """

    ends_R: NDArray[np.int64]
    accuracy_R: NDArray[np.float64]
    latency_ms_R: NDArray[np.float64]
    duration_s: float
    switches: int
    rows_R: NDArray[np.int64] | None = None
    besides_R: NDArray[np.int64] | None = None

    def count(self, end: RequestEnds) -> int:
        """How many requests ended so."""
        return int((self.ends_R == end).sum())

    @property
    def attainment(self) -> float:
        """Share of requests that were answered in time."""
        return self.count(RequestEnds.IN_TIME) / max(1, len(self.ends_R))

    @property
    def accuracy(self) -> float:
        """Mean accuracy over all requests, late and rejected ones wrong."""
        return float(np.where(self.ends_R == RequestEnds.IN_TIME, self.accuracy_R, 0.0).sum()) / max(
            1, len(self.ends_R)
        )

    @property
    def served_accuracy(self) -> float:
        """Mean accuracy of the answers in time; NaN: there is none."""
        return self.accuracy / self.attainment if self.attainment else float("nan")

    @property
    def switches_per_minute(self) -> float:
        """Switches of variants a minute."""
        return self.switches * 60 / self.duration_s

    @property
    def mean_ms(self) -> float:
        """Mean latency of all answers; NaN: there is none."""
        answered = self.latency_ms_R[self.ends_R != RequestEnds.REJECTED]
        return float(answered.mean()) if len(answered) else float("nan")

    def quantile_ms(self, share: float) -> float:
        """A quantile of the latency of all answers; NaN: there is none."""
        answered = self.latency_ms_R[self.ends_R != RequestEnds.REJECTED]
        return float(np.quantile(answered, share)) if len(answered) else float("nan")
