"""Results of a bundle under stress."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Literal, NamedTuple

System = Literal["adapts", "largest alone"]
SYSTEMS: tuple[System, ...] = ("adapts", "largest alone")
WHOLE = "in all"
"""The row of all phases together."""


class StressedAnswer(NamedTuple):
    """An answer of a service to a request. subnets: the SubNets that answered its images.

    latency_ms: in the model. round_trip_ms: with HTTP. accuracy: mean accuracy of these SubNets, by the bundle. right: share of
    images whose class equals the label, or, without labels, the largest SubNet's class.
    """

    phase: str
    system: System
    subnets: tuple[str, ...]
    latency_ms: float
    round_trip_ms: float
    accuracy: float
    right: float


@dataclass(frozen=True, slots=True)
class StressedPhase:
    """The answers of a service in a phase.

    in_time, right: shares of the answers; accuracy: mean; accuracy_in_time: mean with late answers as wrong. subnets: number of
    images that each SubNet answered, the most first.
    """

    phase: str
    system: System
    answers: int
    in_time: float
    mean_ms: float
    mean_round_trip_ms: float
    accuracy: float
    accuracy_in_time: float
    right: float
    subnets: dict[str, int]

    @classmethod
    def of(cls, phase: str, system: System, answers: Sequence[StressedAnswer], budget_ms: float) -> "StressedPhase":
        """The phase from at least one answer."""
        in_time = [one.latency_ms <= budget_ms for one in answers]
        return cls(
            phase=phase,
            system=system,
            answers=len(answers),
            in_time=mean(in_time),
            mean_ms=mean(one.latency_ms for one in answers),
            mean_round_trip_ms=mean(one.round_trip_ms for one in answers),
            accuracy=mean(one.accuracy for one in answers),
            accuracy_in_time=mean(one.accuracy * kept for one, kept in zip(answers, in_time, strict=True)),
            right=mean(one.right for one in answers),
            subnets=dict(Counter(subnet for one in answers for subnet in one.subnets).most_common()),
        )


@dataclass(frozen=True, slots=True)
class StressedSwitch:
    """A change of the serving variant. at_s: since the first request; reason: as the loop reports it."""

    at_s: float
    phase: str
    step: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class StressReport:
    """The whole result. split: split behind the accuracies; labelled: whether the images of the requests have labels."""

    bundle: str
    budget_ms: float
    split: str
    labelled: bool
    phases: tuple[StressedPhase, ...]
    switches: tuple[StressedSwitch, ...]

    def whole(self, system: System) -> StressedPhase:
        """All phases of a service together."""
        return next(one for one in self.phases if (one.phase, one.system) == (WHOLE, system))

    def to_json(self) -> dict[str, Any]:
        """Content for `--json`."""
        return asdict(self)


def by_phase(answers: Sequence[StressedAnswer], budget_ms: float) -> tuple[StressedPhase, ...]:
    """A row for each phase that has answers, and one over all phases, for each service."""
    found = []
    for phase in (*dict.fromkeys(one.phase for one in answers), WHOLE):
        for system in SYSTEMS:
            own = list(_of(answers, phase, system))
            if own:
                found.append(StressedPhase.of(phase, system, own, budget_ms))
    return tuple(found)


def _of(answers: Iterable[StressedAnswer], phase: str, system: System) -> Iterable[StressedAnswer]:
    return (one for one in answers if one.system == system and phase in (one.phase, WHOLE))
