"""Schemas of winners on one device: the front, measured candidates, comparisons with baselines, and levels.

front.json       the winners, by prediction (search) or by measurement (refine)
measured.json    SubNets that the refinement timed
baselines.json   the networks that winners are compared with
compared.json    winners and baselines, timed on the device
levels.json      each combination of SubNet, exit and format, with its costs, and whether it is worth keeping

Legend: R rows, D columns.
"""

from math import nan
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from adaptive_runtime.bundle.bundles import BundleFormat, NetFigures, SubNetMemory
from profiling_agents.messages import Measurement
from tasks.base.schemas.predictions import AccuracyErrors, Uncertainty
from tasks.base.schemas.stored import Config, Named, PointErrors, Predicted, Record, RelativeErrors, Stored

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
    """`tasks.search.settings.RefineSettings`."""


class Front(Stored):
    """The winners of one device. front: digests of the undominated winners. uncertainty: of their accuracies.

    given_accuracy: of the network as it was given, on the validation split; None: the run trained it, or this is unknown.
    """

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
    given_accuracy: float | None = None


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
    """Gains of the winners over one baseline (`tasks.search.baselines.stage`)."""

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


LEVELS_FILE = "levels.json"


class LevelRow(Named):
    """A combination. device: the device of the run whose tables predict it. exit: its last exit; None: whole, or `early`.

    early: samples leave by thresholds. accuracy: on validation images; accuracy_error: its standard deviation. latency_error:
    relative standard deviation of the latency; for early answers at least their spread over samples. energy_mj: energy of one
    sample; None: unknown. over: other devices besides the coordinator. on_front: no other row is at least as accurate, fast,
    frugal and small, and better in one of them. kept: the run time chooses the row in some state of the device.
    """

    device: str
    format: BundleFormat
    exit: str | None = None
    early: bool = False
    accuracy: float = Field(ge=0, le=1)
    accuracy_error: float = Field(ge=0)
    latency_ms: float = Field(gt=0)
    latency_error: float = Field(ge=0)
    energy_mj: float | None = None
    over: tuple[str, ...] = ()
    weights_mib: float = Field(ge=0)
    activations_mib: float = Field(ge=0)
    on_front: bool = False
    kept: bool = False

    @property
    def memory_mib(self) -> float:
        """Memory of weights and peak activations [MiB]."""
        return self.weights_mib + self.activations_mib

    def columns(self, latency_ms: float | None = None) -> tuple[float, float, float, float]:
        """The columns by which rows are compared, less is better: −accuracy, latency, energy, memory. An unknown energy is NaN.

        latency_ms: replaces the row's latency; None: keep it.
        """
        energy_mj = nan if self.energy_mj is None else self.energy_mj
        return -self.accuracy, self.latency_ms if latency_ms is None else latency_ms, energy_mj, self.memory_mib

    @property
    def name(self) -> str:
        """The combination in words, unique among rows."""
        ending = " by thresholds" if self.early else "" if self.exit is None else f" up to {self.exit}"
        return f"{self.digest} in {self.format}{ending}{' over devices' if self.over else ''}"

    def figures(self, split: str) -> NetFigures:
        """A bundle's figures of a whole SubNet in the format; the accuracy is that of `split`."""
        memory = SubNetMemory(weights_mib=self.weights_mib, activations_mib=self.activations_mib)
        return NetFigures(
            accuracy={split: self.accuracy},
            latency_ms=self.latency_ms,
            latency_error=self.latency_error,
            energy_mj=self.energy_mj,
            memory=memory,
        )


class MissingLevel(Record):
    """A SubNet that has no row in a format, or over other devices, and the reason."""

    digest: str
    format: BundleFormat
    reason: str


class Levels(Stored):
    """The levels of the device that has the bundle. energy_from: source of predicted energies; None: devices differ in it."""

    STAGE: ClassVar[str] = "front"
    COMMAND: ClassVar[str] = "export"

    device: str
    energy_from: str | None
    rows: tuple[LevelRow, ...]
    left_out: tuple[MissingLevel, ...] = ()

    @property
    def formats(self) -> tuple[BundleFormat, ...]:
        """The formats of the rows, each once."""
        return tuple(dict.fromkeys(row.format for row in self.rows))

    def whole(self, form: BundleFormat) -> dict[str, LevelRow]:
        """The rows of whole SubNets in a format, by digest."""
        rows = (row for row in self.rows if row.format == form and not row.over)
        return {row.digest: row for row in rows if row.exit is None and not row.early}

    @property
    def placed(self) -> dict[str, LevelRow]:
        """The kept rows over devices, by digest."""
        return {row.digest: row for row in self.rows if row.over and row.kept}


def against(columns_RD: NDArray[np.float64], own_D: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each row is no worse than the row `own_D` in all columns (R,), and whether it is better in one (R,).

    A column that is unknown (NaN) in both rows is ignored. If it is unknown in only one of them, the row does not count as no
    worse.
    """
    unknown_RD = np.isnan(columns_RD) & np.isnan(own_D)
    no_worse_R: NDArray[np.bool_] = np.all((columns_RD <= own_D) | unknown_RD, axis=1)
    better_R: NDArray[np.bool_] = np.any(columns_RD < own_D, axis=1)
    return no_worse_R, better_R
