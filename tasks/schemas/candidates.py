"""`measured.json`: what the refinement timed on one device."""

from typing import ClassVar

from profiling_agents.messages import Measurement
from tasks.schemas.stored import Config, Record, Stored
from tasks.schemas.subnets import Predicted

MEASURED_FILE = "measured.json"


class Candidate(Predicted):
    """A SubNet, its latency as measured, and as SubNets like it tell [ms] (None where it could not be measured).

    `accuracy`, `loss`: on the validation images; None where it was not evaluated.
    """

    smoothed_ms: float | None
    latency: Measurement
    accuracy: float | None
    loss: float | None


class Asked(Record):
    """A budget and the digests of the candidates that were taken for it."""

    budget_ms: float
    own: tuple[str, ...]


class Likely(Record):
    """An accuracy as it was expected before it was measured."""

    accuracy: float
    deviation: float


class Proposal(Record):
    """A SubNet that is to be measured, with a latency for each device; `likely`: where measurements had taught an accuracy."""

    config: Config
    predicted_ms: tuple[float, ...]
    likely: Likely | None = None


class Candidates(Stored):
    """All that was timed. `likely`: by digest."""

    STAGE: ClassVar[str] = "refine"
    COMMAND: ClassVar[str] = "export"

    candidates: tuple[Candidate, ...]
    budgets: tuple[Asked, ...]
    likely: dict[str, Likely]
