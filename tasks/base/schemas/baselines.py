"""`baselines.json`: the networks that winners are compared with; `compared.json`: both timed on one device."""

from typing import ClassVar

from tasks.base.schemas.stored import Config, Record, Stored

BASELINES_FILE = "baselines.json"
COMPARED_FILE = "compared.json"


class Evaluated(Record):
    """A network with its accuracy on each split."""

    name: str
    digest: str
    config: Config
    macs: int
    parameters: int
    accuracy: dict[str, float]


class BaselineNetwork(Evaluated):
    """A network of a baseline. network: folder of a separate network; None for a SubNet."""

    baseline: str
    network: str | None


class EvaluatedWinner(Evaluated):
    """A winner. chosen_ms: its measured latency when it was chosen; None if predictions chose it."""

    budget_ms: float
    chosen_ms: float | None


class Baselines(Stored):
    """The networks of all baselines, and the winners by device."""

    STAGE: ClassVar[str] = "baselines"
    COMMAND: ClassVar[str] = "run"

    rows: tuple[BaselineNetwork, ...]
    winners: dict[str, tuple[EvaluatedWinner, ...]]


class TimedNetwork(BaselineNetwork):
    """A baseline's network, timed. reason: why it could not be measured."""

    measured_ms: float | None
    reason: str | None


class TimedWinner(EvaluatedWinner):
    """A winner, timed. reason: why it could not be measured."""

    measured_ms: float | None
    reason: str | None
    within_budget: bool


class AtBudget(Record):
    """Accuracies at one budget: of the winners, and of each baseline; None if all are slower."""

    budget_ms: float
    winners: float | None
    baselines: dict[str, float | None]


class Against(Record):
    """Gains of the winners over one baseline (`tasks.search.baselines.compare`)."""

    points: int
    picks: int
    above: float
    not_below: float
    hypervolume_ratio: float | None
    accuracy_gain_points: float | None
    budgets_of_both: int
    latency_gain: float | None
    not_reached: int


class Gains(Record):
    """Gains of the winners over every baseline, at each budget and over all."""

    above_every: float
    not_below_any: float
    reference_ms: float
    reference_accuracy: float
    hypervolume: float
    baselines: dict[str, Against]
    budgets: tuple[AtBudget, ...]


class Compared(Gains, Stored):
    """Winners and baselines of one device, timed side by side. `within_budget`: shares of the winners."""

    STAGE: ClassVar[str] = "compared"
    COMMAND: ClassVar[str] = "run"

    device: str
    within_budget: float
    within_budget_when_chosen: float | None
    rows: tuple[TimedNetwork, ...]
    winners: tuple[TimedWinner, ...]
