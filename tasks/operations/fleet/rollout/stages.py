"""The two questions of a stage, for each measure: is the bundle worse than tolerated, and is it surely not harmful?

Legend: R roll-outs, N devices, M measures.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.operations.fleet.rollout.draw import StagePlan
from tasks.operations.fleet.rollout.measures import shift_of
from tasks.operations.fleet.rollout.randomisation import RandomisationTest, drawn_divisions, rank_scores
from tasks.operations.fleet.rollout.settings import MeasureName, RolloutSettings


class StageOutcome(NamedTuple):
    """The outcome after a look (R, M): measures worse than tolerated, and harmless measures; neither is ever revoked."""

    worse_RM: NDArray[np.bool_]
    safe_RM: NDArray[np.bool_]


class StageTest:
    """Looks at a stage's losses after each window. Both questions are tests of sums of ranks, after a supposed loss is
    subtracted from the devices that have the bundle: `tolerated` for the first question, which is also asked of each kind;
    `harmful` for the second, which is asked of all devices together.

    If all devices lose `tolerated`, a measure is found worse with a probability of at most `RolloutSettings.measure_level`; if
    all lose `harmful`, it is found safe with at most the stage's probability in `missed`. Sums of ranks grow with losses.
    """

    def __init__(self, settings: RolloutSettings, plan: StagePlan, rng: np.random.Generator, rollouts: int = 1) -> None:
        """rollouts: number of roll-outs that are tested side by side; they have drawn devices at the same places."""
        self._settings = settings
        self._plan = plan
        divisions_BN = drawn_divisions(plan.kind_N, plan.treated_N, settings.draws, rng)

        def tests(level: float, by_kind: bool) -> dict[MeasureName, RandomisationTest]:
            looks = settings.most_windows
            return {
                name: RandomisationTest(
                    divisions_BN, plan.kind_N, level, looks=looks, rollouts=rollouts, by_kind=by_kind
                )
                for name in settings.measures
            }

        self._worse = tests(settings.measure_level, by_kind=True)
        self._safe = tests(settings.missed[plan.stage], by_kind=False)
        nothing = np.zeros((rollouts, len(settings.measures)), dtype=bool)
        self._outcome = StageOutcome(nothing, nothing.copy())

    def look(self, losses: Mapping[MeasureName, NDArray[np.float64]]) -> StageOutcome:
        """The outcome after one more window. losses: of the compared devices since the stage began (R, N)."""
        for place, name in enumerate(self._settings.measures):
            limits = self._settings.limits[name]
            worse_RN = self._scores(losses[name], shift_of(name, limits.tolerated))
            safe_RN = -self._scores(losses[name], shift_of(name, limits.harmful))
            self._outcome.worse_RM[:, place] |= self._worse[name].look(worse_RN)
            self._outcome.safe_RM[:, place] |= self._safe[name].look(safe_RN)
        return self._outcome

    def keep(self, kept_R: NDArray[np.bool_]) -> None:
        """Go on with these roll-outs alone."""
        self._outcome = StageOutcome(*(one_RM[kept_R] for one_RM in self._outcome))
        for test in (*self._worse.values(), *self._safe.values()):
            test.keep(kept_R)

    def _scores(self, losses_RN: NDArray[np.float64], supposed: float) -> NDArray[np.float64]:
        return rank_scores(losses_RN - supposed * self._plan.treated_N, self._plan.kind_N)
