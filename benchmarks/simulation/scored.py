"""What systems were worth in a scenario, by one objective, beside an oracle that knows each request before it comes.

The objective is that of the choice: mu · Norm(accuracy) − (1 − mu) · Norm(energy), mu by the battery of the moment, Norm from
0 to 1 over the rows that can be an answer. A request without an answer in time has Norm(accuracy) 0 and the energy that it
took, and so has a row that needs more memory than other programs leave. Under drift Norm(accuracy) keeps the share of the
accuracy that is left. Source: CrowdHMTware, eq. 3.

Legend: V rows, R requests.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.policy import BatteryMu, ByRules, ChoiceLimits, Switching, VariantLookUp, parse_rules
from adaptive_runtime.policy.scoring import norm_V
from adaptive_runtime.state.traces import PressureResponse, Scenario
from benchmarks.simulation.levels import LevelRows
from benchmarks.simulation.outcomes import RequestEnds, SimulatedOutcome
from benchmarks.simulation.requests import SimulatedRequests
from benchmarks.simulation.scenario_device import LinkHistory, ScenarioDevice
from benchmarks.simulation.server import Heard, Simulation

NOTICED_S = 60.0
"""From the begin of a drift until weights have adapted."""
POLICY = "mu by battery"
"""Where no other rules are given."""
PIECE = 2048
ORACLE, EVERYTHING, STAY = "oracle", "all levels", "all levels, weights stay"
Values = NDArray[np.float64]


class ScoredSystem(NamedTuple):
    """attainment: share of requests in time, within the memory. without_memory: share that needed more than there was.

    accuracy: mean under the drift, wrong where there is no answer in time. energy_mj: of a request, mean. score: the objective.
    """

    name: str
    attainment: float
    without_memory: float
    accuracy: float
    energy_mj: float
    score: float
    switches_per_minute: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedScenario:
    """A scenario on a simulated device, the same for all systems.

    mu_R: at each request. left_R, adapted_R, at_best_R: share of the accuracy that the drift leaves with weights that stay,
    adapt once they have noticed it, and adapt at once. memory_R: what other programs leave [MiB]. policy: the rules by
    which all systems decide.
    """

    scenario: Scenario
    rows: LevelRows
    requests: SimulatedRequests
    limits: ChoiceLimits
    mu_R: Values
    left_R: Values
    adapted_R: Values
    at_best_R: Values
    memory_R: Values
    links: LinkHistory
    policy: str

    @classmethod
    def drawn(
        cls,
        scenario: Scenario,
        rows: LevelRows,
        limits: ChoiceLimits,
        response: PressureResponse,
        *,
        seed: int,
        policy: str = POLICY,
    ) -> Self:
        """All that is random by one seed. response: of all load classes."""
        trace = scenario.trace((response,) * rows.table.load_classes, seed=seed)
        moments = [scenario.at(time_s) for time_s in trace.arrivals_s]
        by_battery = BatteryMu()
        drifts = [moment.phase.drift for moment in moments]
        left_R = np.array([1.0 if drift is None else 1 - drift.lost for drift in drifts])
        at_best_R = np.array([1.0 if drift is None else 1 - drift.lost * drift.stays for drift in drifts])
        noticed_R = np.array([moment.since_s >= NOTICED_S for moment in moments])
        return cls(
            scenario=scenario,
            rows=rows,
            requests=SimulatedRequests.drawn(rows.table, trace, seed=seed),
            limits=limits,
            mu_R=np.array([by_battery.mu(moment.battery, moment.phase.charging) for moment in moments]),
            left_R=left_R,
            adapted_R=np.where(noticed_R, at_best_R, left_R),
            at_best_R=at_best_R,
            memory_R=np.array([moment.memory_mib for moment in moments]),
            links=LinkHistory(scenario, seed),
            policy=policy,
        )

    def play(self, may_run: frozenset[int] | None = None, heard: Heard | None = None) -> SimulatedOutcome:
        """The run time's own decisions among some rows; None: all. heard: is told each decision."""
        around = ScenarioDevice(self.scenario, self.rows, self.requests, may_run=may_run, links=self.links)
        policy = ByRules(parse_rules(self.policy), VariantLookUp(self.rows.table), Switching)
        return Simulation(requests=self.requests, limits=self.limits, around=around).run(policy, heard)

    @property
    def alone(self) -> dict[str, frozenset[int]]:
        """The rows of systems that adapt at one level, and of one that does not adapt."""
        rows = self.rows
        return {
            "elastic only": rows.only("subnet"),
            "exits only": rows.only("exit"),
            "engine only": rows.only("engine"),
            "offloading only": rows.only("placement"),
            "nothing adapts": frozenset([rows.full]),
        }

    @property
    def ablated(self) -> dict[str, frozenset[int]]:
        """The rows of systems without one of CrowdHMTware's three components (Table V); elastic networks have exits there."""
        rows = self.rows
        return {
            "elastic + offloading": rows.only("subnet", "exit", "placement"),
            "elastic + engine": rows.only("subnet", "exit", "engine"),
            "offloading + engine": rows.only("placement", "engine"),
        }

    def systems(self) -> list[ScoredSystem]:
        """Each level alone, without one component, all together without and with weights that adapt, and the oracle."""
        fewer = {**self.alone, **self.ablated}
        found = [self.scored(name, self.play(may_run), self.left_R) for name, may_run in fewer.items()]
        together = self.play()
        found.append(self.scored(STAY, together, self.left_R))
        return [*found, self.scored(EVERYTHING, together, self.adapted_R), self.oracle()]

    def scored(self, name: str, outcome: SimulatedOutcome, left_R: Values) -> ScoredSystem:
        """By what became of all requests. left_R: share of the accuracy that the drift leaves."""
        assert outcome.rows_R is not None, "a simulation tells rows"
        table, served_R = self.rows.table, outcome.rows_R >= 0
        in_time_R = outcome.ends_R == RequestEnds.IN_TIME
        fits_R = table.memory_mib_V[outcome.rows_R] <= self.memory_R
        right_R = in_time_R * fits_R * left_R
        accuracy_V, energy_V = self._norms()
        energy_mj_R, norm_R = served_R * table.energy_mj_V[outcome.rows_R], served_R * energy_V[outcome.rows_R]
        if outcome.besides_R is not None:
            besides_R = outcome.besides_R >= 0
            energy_mj_R += besides_R * table.energy_mj_V[outcome.besides_R]
            norm_R += besides_R * (energy_V[outcome.besides_R] - self._norm_of_nothing)
        score_R = self.mu_R * right_R * accuracy_V[outcome.rows_R] - (1 - self.mu_R) * norm_R
        return ScoredSystem(
            name=name,
            attainment=float((in_time_R & fits_R).mean()),
            without_memory=float((served_R & ~fits_R).mean()),
            accuracy=float((right_R * table.accuracy_V[outcome.rows_R]).mean()),
            energy_mj=float(energy_mj_R.mean()),
            score=float(score_R.mean()),
            switches_per_minute=outcome.switches_per_minute,
        )

    def oracle(self) -> ScoredSystem:
        """A bound: each request has the row with the highest score, of those that fit the memory; none where all are below 0.

        It knows slow-down, links and noise of each request, no request waits for another, and weights have adapted at once.
        """
        table, requests, trace = self.rows.table, self.requests, self.requests.trace
        device = ScenarioDevice(self.scenario, self.rows, requests, links=self.links)
        placed, count = sorted(self.rows.placed), len(requests)
        accuracy_V, energy_V = self._norms()
        rows_R, taken_ms_R = np.zeros(count, np.int64), np.zeros(count)
        for start in range(0, count, PIECE):
            piece = slice(start, start + PIECE)
            times_VR = requests.latency_ms_V[:, None] * requests.factor_CR[table.load_class_V, piece]
            times_VR[placed] = device.placed_ms_KR[:, piece]
            right_VR = (times_VR <= self.limits.budget_ms) * self.at_best_R[piece]
            mu_R = self.mu_R[piece]
            score_VR = mu_R * right_VR * accuracy_V[:, None] - (1 - mu_R) * energy_V[:, None]
            fits_VR = np.isfinite(times_VR) & (table.memory_mib_V[:, None] <= self.memory_R[piece])
            score_VR = np.where(fits_VR, score_VR, -np.inf)
            best_R = score_VR.argmax(0)
            each_R = np.arange(len(best_R))
            rows_R[piece] = np.where(score_VR[best_R, each_R] >= 0, best_R, -1)
            taken_ms_R[piece] = times_VR[best_R, each_R]
        ends_R = np.where(taken_ms_R <= self.limits.budget_ms, RequestEnds.IN_TIME.value, RequestEnds.LATE.value)
        outcome = SimulatedOutcome(
            ends_R=np.where(rows_R >= 0, ends_R, RequestEnds.REJECTED.value),
            accuracy_R=table.accuracy_V[rows_R],
            latency_ms_R=taken_ms_R,
            duration_s=trace.duration_s,
            switches=0,
            rows_R=rows_R,
        )
        return self.scored(ORACLE, outcome, self.at_best_R)

    def _norms(self) -> tuple[Values, Values]:
        """Of accuracy and energy (V,) each, as the choice has them."""
        table = self.rows.table
        kept = VariantLookUp(table).kept_rows
        return norm_V(table.accuracy_V, kept), norm_V(table.energy_mj_V, kept)

    @property
    def _norm_of_nothing(self) -> float:
        """Norm(energy) of 0 mJ."""
        table = self.rows.table
        kept = VariantLookUp(table).kept_rows
        return float(norm_V(np.append(table.energy_mj_V, 0.0), kept)[-1])
