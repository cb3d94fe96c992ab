"""The end of a run in the terminal."""

from rich.markup import escape
from rich.table import Table

from tasks.base.pages.text import millions, milliseconds
from tasks.evaluation.uncertainty import uncertain
from tasks.report import baselines
from tasks.report.headline import idle, kept, unkept
from tasks.report.looks import Row


def terminal_table(report: Row) -> list[Table]:
    """The headline; then for each device: budgets that nothing keeps, a table with predictions and measurements, baselines."""
    cards = Table(title=escape(report["model"]), show_header=False, box=None)
    for card in report["headline"]:
        cards.add_row(escape(card["label"]), f"[bold]{escape(card['value'])}[/]", escape(card["note"]))
    if report.get("remarks"):
        cards.caption = "\n".join(f"[yellow]{escape(line)}[/]" for line in report["remarks"])
        cards.caption_justify = "left"
    devices = report["devices"]
    return [cards, *(table for device in devices for table in (_device_table(device), *baselines.tables(device)))]


def _device_table(device: Row) -> Table:
    remarks = [f"\n[bold red]{escape(line)}[/]" for line in (unkept(device),) if line]
    remarks += [f"\n[yellow]{escape(line)}[/]" for line in (idle(device),) if line]
    table = Table(title=escape(device["name"]) + "".join(remarks))
    for column in (
        "budget",
        "predicted",
        "measured",
        "within",
        f"test {device['score']}",
        "MACs",
        "parameters",
        "resolution",
    ):
        table.add_column(column, justify="right")
    base = device["base"]
    size = (millions(base["macs"]), millions(base["parameters"]), str(base["resolution"]))
    samples = device.get("test_samples")
    measured = (milliseconds(base["measured_ms"]), "", uncertain(base["accuracy"], samples))
    table.add_row(base["name"], "", *measured, *size, end_section=True)
    if failed := {row["digest"]: row["reason"] for row in device["winners"] if row["reason"]}:
        first, of = next(iter(failed.items())), len({row["digest"] for row in device["winners"]})
        table.caption = (
            f"[bold red]{len(failed)} of {of} SubNets lack files or measurements:[/] {escape(': '.join(first))}"
        )
    for row in kept(device):
        within = "[green]yes[/]" if row["within_budget"] else "[red]failed[/]"
        if row["missed"]:
            within = f"[green]yes[/], {row['missed']['digest'][:8]} replaced, {row['missed']['why']}"
        table.add_row(
            milliseconds(row["budget_ms"]),
            milliseconds(row["predicted_ms"]),
            milliseconds(row["measured_ms"]),
            within,
            uncertain(row["accuracy"], samples),
            millions(row["macs"]),
            millions(row["parameters"]),
            str(row["resolution"]),
        )
    return table
