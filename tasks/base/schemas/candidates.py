"""`measured.json`: SubNets that the refinement timed on one device."""

from typing import ClassVar

from profiling_agents.messages import Measurement
from tasks.base.schemas.stored import Config, Record, Stored
from tasks.base.schemas.subnets import Predicted

MEASURED_FILE = "measured.json"


class Candidate(Predicted):
    """A SubNet with its measured latency, and the latency smoothed over similar SubNets [ms] (None if not measurable).

    accuracy, loss: on the validation images; None if it was not evaluated.
    """

    smoothed_ms: float | None
    latency: Measurement
    accuracy: float | None
    loss: float | None


class Asked(Record):
    """A budget and the digests of the candidates for it."""

    budget_ms: float
    own: tuple[str, ...]


class Likely(Record):
    """The expected accuracy before the measurement."""

    accuracy: float
    deviation: float


class Proposal(Record):
    """A SubNet to be measured, with a latency for each device; likely: its accuracy, if learned from measurements."""

    config: Config
    predicted_ms: tuple[float, ...]
    likely: Likely | None = None


class Candidates(Stored):
    """All timed SubNets. likely: by digest."""

    STAGE: ClassVar[str] = "refine"
    COMMAND: ClassVar[str] = "export"

    candidates: tuple[Candidate, ...]
    budgets: tuple[Asked, ...]
    likely: dict[str, Likely]
