"""The headline of a run: the few numbers that answer whether it was worth it, and its end in the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Column, Table

from tasks.base.pages.text import count, millions, milliseconds, percent
from tasks.base.schemas.results import EndsAccuracy
from tasks.data.problems import FIDELITY
from tasks.evaluation.uncertainty import limit_of, standard_error, too_small, uncertain
from tasks.report import baselines, leaving, parts
from tasks.report.parts import Row, card_of
from tasks.report.streams import card as stream_card

HARDLY_ABOVE = 1.05
"""Budgets up to this factor above the whole network's latency are hardly above: predictions and measurements differ."""


def headline(report: Row, points: float) -> list[Row]:
    """Cards of label, value, note, and the device that they are about, "" if none."""
    space = report["supernet"]
    name, accuracy = reference(report)
    spread = max((device["base"].get("spread", 1.0) for device in report["devices"]), default=1.0)
    reached = uncertain(accuracy, report["samples"]["test"], spread)
    cards = [
        card_of(name, reached, f"test {report['score']}, {report['model']}"),
        card_of(
            "SubNets", count(space["distinct"]), f"different ones, of {count(space['unique_operators'])} operators"
        ),
    ]
    for device in report["devices"]:
        cards += [
            _speed_card(device, name, accuracy, points),
            *parts.card(device),
            *_implementation_cards(device),
            *_int8_cards(device),
            _error_card(device),
            _kept_card(device),
            *leaving.card(device),
            *baselines.cards(device),
        ]
    return [*cards, *(card for row in report["streams"] for card in stream_card(row))]


def remarks(report: Row, ends: EndsAccuracy | None) -> list[str]:
    """Lines shown above all numbers: harm by fine-tuning, and splits that are too small to distinguish winners."""
    before = getattr(ends, "before", None)
    found = [] if before is None or not before.is_worse else [before.line]
    rows = [row for device in report["devices"] for row in device["winners"] if row.get("accuracy") is not None]
    if rows and report.get("problem") == FIDELITY.name and (samples := report["samples"]["test"]):
        errors = [standard_error(row["accuracy"], samples, row.get("spread", 1.0)) for row in rows]
        found.append(limit_of("test", samples, max(errors)))
    for split, field in (("validation", "measured_accuracy"), ("test", "accuracy")):
        for device in report["devices"]:
            winners = {row["digest"]: row for row in device["winners"]}
            shares = [share for row in winners.values() if (share := row.get(field)) is not None]
            spread = max((row.get("spread", 1.0) for row in winners.values()), default=1.0)
            if line := too_small(split, report["samples"][split], shares, spread):
                found.append(f"{device['name']}: {line}")
    return found


def reference(report: Mapping[str, Any]) -> tuple[str, float | None]:
    """The network whose test accuracy is the reference for losses: the base model, or the nearest to it in this run."""
    for name in ("base model", "largest SubNet"):
        if (accuracy := report["accuracies"].get(f"{name}, test")) is not None:
            return name, accuracy
    known = [row["accuracy"] for device in report["devices"] for row in device["winners"]]
    return "best winner", max((accuracy for accuracy in known if accuracy is not None), default=None)


def fastest_within(device: Mapping[str, Any], accuracy: float, points: float) -> Row | None:
    """The winner of lowest measured latency whose test accuracy is at most `points` below `accuracy`."""
    rows = [
        row
        for row in device["winners"]
        if row["measured_ms"] is not None
        and row["accuracy"] is not None
        and row["accuracy"] >= accuracy - points / 100 - 1e-9
    ]
    return min(rows, key=lambda row: row["measured_ms"], default=None)


def _speed_card(device: Row, name: str, accuracy: float | None, points: float) -> Row:
    label, base_ms = f"{device['name']}: speed-up", device["base"]["measured_ms"]
    row = None if accuracy is None else fastest_within(device, accuracy, points)
    if row is None:
        return card_of(label, "–", f"no measured SubNet within {points:g} points of the {name}", device["name"])
    times = f"{milliseconds(row['measured_ms'])} instead of {milliseconds(base_ms)}"
    accuracy_there = uncertain(row["accuracy"], device.get("test_samples"), row.get("spread", 1.0))
    note = f"{times}, {device['score']} {accuracy_there} (within {points:g} points of the {name})"
    return card_of(label, f"{base_ms / row['measured_ms']:.2f} ×", note, device["name"])


def _implementation_cards(device: Row) -> list[Row]:
    """The gain from the chosen implementations of operators alone, on the base network; it is no part of the speed-up."""
    base_ms, own_ms = device["base"]["measured_ms"], device["base"]["own_choices_ms"]
    if own_ms is None:
        return []
    times = f"{milliseconds(base_ms)} instead of {milliseconds(own_ms)}"
    note = f"{times}: the {device['base']['name']} by the fastest implementations, not by the runtime's own choices"
    return [card_of(f"{device['name']}: implementations", f"{own_ms / base_ms:.2f} ×", note, device["name"])]


def _int8_cards(device: Row) -> list[Row]:
    """The gain from int8 alone, on the base network, and its cost for SubNets; it is no part of the speed-up."""
    base_ms, fp32_ms, cost = device["base"]["measured_ms"], device["base"]["fp32_ms"], device["int8"]
    if cost is None:
        return []
    label = f"{device['name']}: int8"
    lost = f"costs SubNets {cost['mean_points']:.2f} points on average, at most {cost['most_points']:.2f}"
    if fp32_ms is None:
        return [card_of(label, "–", lost, device["name"])]
    note = f"{milliseconds(base_ms)} instead of {milliseconds(fp32_ms)}: the {device['base']['name']} in int8; {lost}"
    return [card_of(label, f"{fp32_ms / base_ms:.2f} ×", note, device["name"])]


def _error_card(device: Row) -> Row:
    label, errors = f"{device['name']}: latency predictor", device["latency_validation"]
    if not errors["n"]:
        return card_of(label, "–", "no held-out SubNets", device["name"])
    largest = percent(errors["max_relative_error"])
    note = f"median error on {errors['n']} held-out SubNets, largest {largest}"
    return card_of(label, percent(errors["median_relative_error"]), note, device["name"])


def kept(device: Mapping[str, Any]) -> list[Row]:
    """The winners except those that miss their budget as measured."""
    return [row for row in device["winners"] if row["within_budget"] is not False]


def unkept(device: Row) -> str | None:
    """The budgets that no measured SubNet keeps, each with its nearest SubNet; None if there are none."""
    missed = [row for row in device["winners"] if row["within_budget"] is False]
    if not missed:
        return None
    nearest = (
        f"{milliseconds(row['budget_ms'])} (the nearest, {row['digest'][:8]}, takes {milliseconds(row['measured_ms'])})"
        for row in missed
    )
    return f"no measured SubNet keeps {', '.join(nearest)}"


def idle(device: Row) -> str | None:
    """The budgets above the latency of the whole network, where more time buys nothing; None if there are none.
    A single budget that is hardly above does not count: the budgets that the search makes end there.
    """
    whole_ms = device["base"]["measured_ms"]
    above = sorted({row["budget_ms"] for row in device["winners"] if row["budget_ms"] >= whole_ms})
    if not above or (len(above) == 1 and above[0] <= HARDLY_ABOVE * whole_ms):
        return None
    shown, are = ", ".join(map(milliseconds, above)), "is" if len(above) == 1 else "are"
    begin = "a budget" if len(above) == 1 else "budgets"
    return f"{begin} of {shown} {are} above the {device['base']['name']}'s {milliseconds(whole_ms)}: more time buys nothing"


def _kept_card(device: Row) -> Row:
    winners = device["winners"]
    confirmed = sum(row["within_budget"] is True for row in winners)
    note = unkept(device) or "each winner timed again when it was exported"
    return card_of(f"{device['name']}: budgets kept", f"{confirmed} of {len(winners)}", note, device["name"])


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


def _score(row: Row, samples: int | None, true: Sequence[str]) -> tuple[str, ...]:
    """The cells of the score on the test split, and of the true score, if its column exists."""
    found = uncertain(row["accuracy"], samples, row.get("spread", 1.0))
    return (found, uncertain(row.get("true_score"), row.get("labelled"))) if true else (found,)


def _device_table(device: Row) -> Table:
    remarks = [f"\n[bold red]{escape(line)}[/]" for line in (unkept(device),) if line]
    remarks += [f"\n[yellow]{escape(line)}[/]" for line in (idle(device),) if line]
    true = ("true score",) if any("true_score" in row for row in device["winners"]) else ()
    heads = (
        "budget",
        "predicted",
        "measured",
        "within",
        f"test {device['score']}",
        *true,
        "MACs",
        "parameters",
        "resolution",
    )
    columns = (Column(head, justify="right") for head in heads)
    table = Table(*columns, title=escape(device["name"]) + "".join(remarks))
    base = device["base"]
    size = (millions(base["macs"]), millions(base["parameters"]), str(base["resolution"]))
    samples = device.get("test_samples")
    measured = (milliseconds(base["measured_ms"]), "", *_score(base, samples, true))
    table.add_row(base.get("row", base["name"]), "", *measured, *size, end_section=True)
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
            *_score(row, samples, true),
            millions(row["macs"]),
            millions(row["parameters"]),
            str(row["resolution"]),
        )
    return table
