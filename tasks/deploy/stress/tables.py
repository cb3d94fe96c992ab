"""A bundle under stress as tables in the terminal."""

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from tasks.deploy.stress.results import StressedPhase, StressReport

STEPS = {"start": "begins with", "up": "up to", "down": "down to"}
MOST_SHOWN = 3


def stress_tables(report: StressReport) -> Group:
    """Phases of both services, the switches with their reasons, and the result in one line."""
    return Group(_phases(report), _switches(report), _comes_to(report))


def _phases(report: StressReport) -> Table:
    right = "right" if report.labelled else "as the largest"
    told = f"{right}: of the requests' own images; " if report.labelled else ""
    table = Table(
        title=f"under stress, within {report.budget_ms:.3g} ms",
        caption=f"in time and ms: in the model, without HTTP; {told}accuracy: {escape(report.split)} of what answered",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("phase")
    table.add_column("serves")
    for name in ("answers", "in time", "mean ms", "with HTTP, ms", "accuracy", "late = wrong", right):
        table.add_column(name, justify="right")
    table.add_column("SubNets that answered")
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
    table = Table(title="what serves, and why", title_justify="left")
    table.add_column("s", justify="right")
    for name in ("phase", "", "SubNet", "reason"):
        table.add_column(name)
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
