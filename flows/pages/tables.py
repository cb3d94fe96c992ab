"""Rows of the tables in Prefect's UI: the winners of a device, as far as they are known, and a dry run."""

from collections.abc import Mapping

from flows.pages.facts import NONE, Facts, Row
from tasks.pages.text import count, millions, milliseconds, percent

WITHIN = {True: "yes", False: "misses"}


def front_rows(front: Row) -> list[Facts]:
    """The winners of a search, or of a refinement, which has measured them."""
    return [
        _winner(row, row, WITHIN.get(row.get("within_budget"), NONE), {"validation": row.get("measured_accuracy")})
        for row in front["winners"]
    ]


def exported_rows(exports: Row) -> list[Facts]:
    """The winners as they were exported and measured."""
    cards = {card["digest"]: card for card in exports["subnets"]}
    return [_winner(row, cards[row["digest"]], _within(row), row["accuracy"]) for row in exports["winners"]]


def _within(row: Row) -> str:
    """Of a winner that was to be measured."""
    return "failed" if row["measured_ms"] is None else WITHIN[row["within_budget"]]


def _winner(row: Row, sizes: Row, within: str, accuracy: Mapping[str, float | None]) -> Facts:
    return {
        "budget": milliseconds(row["budget_ms"]),
        "predicted": milliseconds(row["predicted_ms"]),
        "measured": milliseconds(row.get("measured_ms")),
        "within budget": within,
        "predicted accuracy": percent(row["predicted_accuracy"]),
        "validation accuracy": percent(accuracy.get("validation")),
        "test accuracy": percent(accuracy.get("test")),
        "MACs": millions(sizes["macs"]),
        "parameters": millions(sizes["parameters"]),
        "SubNet": row["digest"],
    }


def plan_rows(plan: Mapping[str, Row]) -> list[Facts]:
    """A dry run of profiling: a row for each device."""
    names = ("operators", "known", "known_noisy", "known_failed", "to_measure")
    return [
        {
            "device": device,
            **{name.replace("_", " "): count(row[name]) for name in names},
            "device time": f"{row['estimated_s']:.1f} s",
            "estimated from": row["estimated_from"],
        }
        for device, row in plan.items()
    ]


def report_rows(device: Row) -> list[Facts]:
    """The base model and the winners of one device of a report."""
    rows = [("base model", NONE, device["base"])]
    rows += [(milliseconds(row["budget_ms"]), _within(row), row) for row in device["winners"]]
    return [
        {
            "budget": budget,
            "predicted": milliseconds(row.get("predicted_ms")),
            "measured": milliseconds(row["measured_ms"]),
            "within budget": within,
            "test accuracy": percent(row["accuracy"]),
            "MACs": millions(row["macs"]),
            "parameters": millions(row["parameters"]),
            "resolution": str(row["resolution"]),
        }
        for budget, within, row in rows
    ]
