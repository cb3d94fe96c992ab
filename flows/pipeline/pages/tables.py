"""Rows of the tables in Prefect's UI: a device's winners, as far as they are known, and a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flows.pipeline.pages import NONE, Facts
from tasks.base.pages.text import count, millions, milliseconds
from tasks.base.schemas.exports import Card, ExportedWinner, Exports
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.winners import Front, Winner
from tasks.evaluation.uncertainty import predicted, uncertain
from tasks.report.headline import kept

if TYPE_CHECKING:
    from tasks.measuring.profile import ProfilePlan

Row = Mapping[str, Any]
"""A part of a report, as JSON."""
WITHIN = {True: "yes", False: "misses"}


def front_rows(front: Front) -> list[Facts]:
    """The winners of a search, or the measured winners of a refinement."""
    return [
        _winner(
            row,
            row,
            NONE if row.within_budget is None else WITHIN[row.within_budget],
            {"validation": uncertain(row.measured_accuracy, front.uncertainty.samples)},
            front.uncertainty,
        )
        for row in front.winners
    ]


def exported_rows(exports: Exports) -> list[Facts]:
    """The winners as exported and measured."""
    cards = {card.digest: card for card in exports.subnets}
    return [
        _winner(
            row,
            card := cards[row.digest],
            _within(row.measured_ms, row.within_budget),
            {split: uncertain(share, card.samples.get(split)) for split, share in row.accuracy.items()},
            exports.uncertainty,
        )
        for row in exports.winners
    ]


def _within(measured_ms: float | None, kept: bool) -> str:
    """Budget result of a winner that was to be measured."""
    return "failed" if measured_ms is None else WITHIN[kept]


def _winner(
    row: Winner | ExportedWinner,
    sizes: Winner | Card,
    within: str,
    accuracy: Mapping[str, str],
    known: Uncertainty,
) -> Facts:
    """A row for one winner. accuracy: measured accuracy by split."""
    return {
        "budget": milliseconds(row.budget_ms),
        "predicted": milliseconds(row.predicted_ms),
        "measured": milliseconds(row.measured_ms),
        "within budget": within,
        "predicted accuracy": predicted(row.predicted_accuracy, known),
        "validation accuracy": accuracy.get("validation", NONE),
        "test accuracy": accuracy.get("test", NONE),
        "MACs": millions(sizes.macs),
        "parameters": millions(sizes.parameters),
        "SubNet": row.digest,
    }


def plan_rows(plan: Mapping[str, ProfilePlan]) -> list[Facts]:
    """A dry run of profiling: a row for each device."""
    return [
        {
            "device": device,
            "operators": count(row["operators"]),
            "known": count(row["known"]),
            "known noisy": count(row["known_noisy"]),
            "known failed": count(row["known_failed"]),
            "to measure": count(row["to_measure"]),
            "device time": f"{row['estimated_s']:.1f} s",
            "estimated from": row["estimated_from"],
        }
        for device, row in plan.items()
    ]


def report_rows(device: Row) -> list[Facts]:
    """The base model, and the winners on one device of a report that keep their budget."""
    rows = [("base model", NONE, device["base"])]
    for row in kept(device):
        rows.append((milliseconds(row["budget_ms"]), _within(row["measured_ms"], row["within_budget"]), row))
    return [
        {
            "budget": budget,
            "predicted": milliseconds(row.get("predicted_ms")),
            "measured": milliseconds(row["measured_ms"]),
            "within budget": within,
            "test accuracy": uncertain(row["accuracy"], device.get("test_samples")),
            "MACs": millions(row["macs"]),
            "parameters": millions(row["parameters"]),
            "resolution": str(row["resolution"]),
        }
        for budget, within, row in rows
    ]
