"""SubNets over several devices together, in the terminal."""

from collections.abc import Mapping
from typing import Any

from rich.markup import escape
from rich.table import Table

from tasks.base.pages.text import amount, milliseconds
from tasks.base.schemas.placed import JointFront, PlanRow
from tasks.evaluation.uncertainty import indistinct, predicted
from tasks.search.choose.terminal import ACCURACY, add_accuracy, facts_table, remarked

Row = Mapping[str, Any]
KIB = 1024


def joint_table(found: JointFront, score: str = ACCURACY) -> Table:
    """The winners of a search over several devices, each with its plan."""
    table = Table(title=escape(" + ".join(found.devices)), title_justify="left", caption_justify="left")
    table.caption = remarked(indistinct(found.winners, found.uncertainty))
    for column in ("budget", "latency", "at home", score, "MACs", "KiB sent"):
        table.add_column(column, justify="right")
    for column in ("coding", "operators on devices", "digest"):
        table.add_column(column)
    for row in found.winners:
        sends = bool(row.plan.transfers)
        table.add_row(
            milliseconds(row.budget_ms),
            milliseconds(row.predicted_ms),
            milliseconds(row.home_ms),
            predicted(row.predicted_accuracy, found.uncertainty),
            amount(row.macs),
            f"{row.plan.sent_bytes / KIB:.4g}" if sends else "",
            row.coding if sends else "",
            escape(row.plan.text),
            row.digest,
        )
    return table


def placed_tables(row: Row, score: str = ACCURACY) -> Table:
    """The SubNet that a rule chose over several devices: its predictions and its plan."""
    plan = PlanRow.model_validate(row["plan"])
    facts = facts_table(f"{row['device']} and others: {row['rule']['text']}")
    facts.add_row(
        "latency", f"[bold]{milliseconds(row['predicted_ms'])}[/] predicted", f"{milliseconds(row['home_ms'])} at home"
    )
    add_accuracy(facts, row, score)
    facts.add_row("size", f"{amount(row['macs'])} MACs", f"{amount(row['parameters'])} parameters")
    facts.add_row(
        "plan", escape(plan.text), f"{plan.sent_bytes / KIB:.4g} KiB sent in {row['coding']}" if plan.transfers else ""
    )
    facts.add_row("found", escape(row["stopped"]), f"digest {row['digest']}")
    return facts
