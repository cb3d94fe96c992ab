"""`front.json`: the winners of one device, by prediction (search) or by measurement (refine)."""

from typing import Any, ClassVar

from tasks.base.schemas.accuracy import AccuracyErrors, Uncertainty
from tasks.base.schemas.agreement import PointErrors, RelativeErrors
from tasks.base.schemas.stored import Record, Stored
from tasks.base.schemas.subnets import Predicted

FRONT_FILE = "front.json"
WHOLE_FRONT_FILE = "whole_front.parquet"


class Replaced(Record):
    """The search's winner of a budget if a measured SubNet replaced it, with its own measurements."""

    digest: str
    measured_ms: float | None
    measured_accuracy: float | None


class Winner(Predicted):
    """The best SubNet within a latency budget.

    budgets_ms: on all devices, if several were searched together. generations, stopped: how the search found it.
    """

    budget_ms: float
    budgets_ms: dict[str, float] | None = None
    generations: int | None = None
    stopped: str | None = None
    measured_accuracy: float | None = None
    measured_ms: float | None = None
    smoothed_ms: float | None = None
    within_budget: bool | None = None
    replaces: Replaced | None = None

    @property
    def accuracy(self) -> float:
        """The accuracy by which it was ranked: the measured one, if there is one."""
        return self.predicted_accuracy if self.measured_accuracy is None else self.measured_accuracy


class UniformSubNet(Predicted):
    """A uniformly shrunk SubNet; scaled: the variables that share one level."""

    scaled: str


class Hypervolume(Record):
    """Area under the front. Reference corner: the largest SubNet's latency, the fastest SubNet's accuracy."""

    value: float
    reference_ms: float
    reference_accuracy: float


class WholeFront(Record):
    """All SubNets of the front by rising latency; error: the share of a budget that the front may miss."""

    error: float
    predicted_ms: tuple[float, ...]
    predicted_accuracy: tuple[float, ...]


class Learned(PointErrors):
    """Errors of the expected accuracies of `n` candidates before their evaluation, with the expected deviation."""

    n: int
    deviation_points: float


class Refinement(Record):
    """The changes by measuring the candidates. moved: budgets made by the search that gained nothing in their places."""

    measured: int
    failed: int
    evaluated: int
    replaced: int
    moved: int = 0
    missed_ms: tuple[float, ...]
    latency: RelativeErrors
    accuracy: AccuracyErrors
    learned: Learned | None
    settings: dict[str, Any]
    """`tasks.search.refine.Settings`."""


class Front(Stored):
    """The winners of one device. front: digests of the undominated winners. uncertainty: of their accuracies."""

    STAGE: ClassVar[str] = "search"
    KIND: ClassVar[str] = "front"

    device: str
    winners: tuple[Winner, ...]
    front: tuple[str, ...]
    fastest: Predicted
    largest: Predicted
    baseline: tuple[UniformSubNet, ...]
    hypervolume: Hypervolume
    evaluations: int
    evaluated: int
    whole_front: WholeFront | None
    settings: dict[str, Any]
    """`tasks.search.Settings`."""
    refinement: Refinement | None = None
    uncertainty: Uncertainty = Uncertainty()
