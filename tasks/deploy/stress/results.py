"""Results of a bundle under stress, as records and as tables in the terminal."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any, Literal, NamedTuple

from rich.console import Group
from rich.markup import escape
from rich.table import Column, Table

System = Literal["adapts", "largest alone"]
SYSTEMS: tuple[System, ...] = ("adapts", "largest alone")
WHOLE = "in all"
"""The row of all phases together."""
MOST_OTHER_SHARE = 0.1
"""Share of the cores that other programs may use in a comparison of phases."""


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
    """The whole result.

    split: split behind the accuracies. labelled: whether the images of the requests have labels. other_share: share of the
    machine's cores that other programs used during the requests, 0 to 1.
    """

    bundle: str
    budget_ms: float
    split: str
    labelled: bool
    phases: tuple[StressedPhase, ...]
    switches: tuple[StressedSwitch, ...]
    other_share: float

    @property
    def is_calm(self) -> bool:
        """Whether the load came from the stress alone, so that its phases can be compared."""
        return self.other_share <= MOST_OTHER_SHARE

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
            own = [one for one in answers if one.system == system and phase in (one.phase, WHOLE)]
            if own:
                found.append(StressedPhase.of(phase, system, own, budget_ms))
    return tuple(found)


STEPS = {"start": "begins with", "up": "up to", "down": "down to"}
MOST_SHOWN = 3


def stress_tables(report: StressReport) -> Group:
    """Phases of both services, the switches with their reasons, and the result in one line."""
    lines = []
    if not report.is_calm:
        lines.append(
            f"This machine was not calm enough to show the effect: other programs used {report.other_share:.0%} of its "
            f"cores (at most {MOST_OTHER_SHARE:.0%} leave the phases comparable). Run the same command again when they have "
            "ended."
        )
    return Group(_phases(report), _switches(report), _comes_to(report), *lines)


def _phases(report: StressReport) -> Table:
    right = "right" if report.labelled else "as the largest"
    described = f"{right}: of the requests' own images; " if report.labelled else ""
    heads = ("answers", "in time", "mean ms", "with HTTP, ms", "accuracy", "late = wrong", right)
    table = Table(
        "phase",
        "serves",
        *(Column(name, justify="right") for name in heads),
        "SubNets that answered",
        title=f"under stress, within {report.budget_ms:.3g} ms",
        caption=f"in time and ms: in the model, without HTTP; {described}accuracy: {escape(report.split)} of what answered",
        title_justify="left",
        caption_justify="left",
    )
    last = ""
    for row in report.phases:
        if last and row.phase != last:
            table.add_section()
        shares = [f"{share:.1%}" for share in (row.accuracy, row.accuracy_in_time, row.right)]
        times = [f"{row.in_time:.1%}", f"{row.mean_ms:.2f}", f"{row.mean_round_trip_ms:.2f}"]
        name = "" if row.phase == last else row.phase
        table.add_row(name, row.system, str(row.answers), *times, *shares, escape(_subnets(row)))
        last = row.phase
    return table


def _subnets(row: StressedPhase) -> str:
    """The SubNets that answered most images, with their shares."""
    images = sum(row.subnets.values())
    shown = [f"{name[:8]} {count / images:.0%}" for name, count in list(row.subnets.items())[:MOST_SHOWN]]
    left = len(row.subnets) - len(shown)
    return ", ".join([*shown, *([f"{left} more"] if left else [])])


def _switches(report: StressReport) -> Table:
    seconds = Column("s", justify="right")
    table = Table(seconds, "phase", "", "SubNet", "reason", title="what serves, and why", title_justify="left")
    for one in report.switches:
        step = STEPS.get(one.step, one.step)
        table.add_row(f"{max(0.0, one.at_s):.1f}", one.phase, step, escape(one.variant[:8]), escape(one.reason))
    return table


def _comes_to(report: StressReport) -> str:
    ours, largest = report.whole("adapts"), report.whole("largest alone")
    count = sum(one.step != "start" for one in report.switches)
    return (
        f"{ours.in_time:.1%} in time with {count} switches, the largest alone {largest.in_time:.1%}; "
        f"accuracy with late answers as wrong {ours.accuracy_in_time:.1%}, the largest alone {largest.accuracy_in_time:.1%}"
    )
