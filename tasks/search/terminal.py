"""SubNets in numbers, as JSON and as terminal tables: one SubNet by its stages, two SubNets layer by layer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from tailor_ir import Choice, choice_text
from tasks.base.pages.text import amount, milliseconds
from tasks.base.schemas.exports import AS_GIVEN
from tasks.base.schemas.predictions import Uncertainty
from tasks.base.schemas.stored import Predicted
from tasks.base.schemas.winners import Front
from tasks.data.problems import FIDELITY
from tasks.evaluation.uncertainty import indistinct, predicted, ranked_by, uncertain
from tasks.prediction.layers import Layers, SubNetLayer

Row = Mapping[str, Any]
"""JSON of a SubNet, of a section or of a layer."""


def architecture(layers: Layers, config: Mapping[str, Any]) -> Row:
    """Sections and layers of one SubNet as JSON with their predicted latencies [ms].

    elsewhere: choices that belong to no section. Each layer has its number among the layers of the largest SubNet.
    """
    return {
        "offset_ms": layers.offset_ms,
        "elsewhere": layers.elsewhere(config),
        "sections": [section.to_json() for section in layers.sections(config)],
        "layers": [
            {"layer": number, "place": layers.places[number].name, **operator.to_json()}
            for number, operator in layers.of(config).items()
        ],
    }


def side_by_side(layers: Layers, first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The layers that at least one of two SubNets has, in the order of the largest SubNet.

    first, second: the layer's operator; None if the SubNet skips the layer's block. difference_ms: second minus first, with 0
    for a skipped layer; None if an operator has no latency.
    """
    left, right = layers.of(first), layers.of(second)
    rows = []
    for number in sorted(left.keys() | right.keys()):
        one, other, place = left.get(number), right.get(number), layers.places[number]
        difference_ms = _ms(other) - _ms(one)
        rows.append(
            {
                "layer": number,
                "section": place.section,
                "place": place.name,
                "first": one and one.to_json(),
                "second": other and other.to_json(),
                "difference_ms": None if math.isnan(difference_ms) else difference_ms,
            }
        )
    return rows


def _ms(operator: SubNetLayer | None) -> float:
    if operator is None:
        return 0.0
    return math.nan if operator.predicted_ms is None else operator.predicted_ms


BAR_WIDTH = 24
ACCURACY = "accuracy"
NOTHING = "[dim]–[/]"
WHOLE = "whole SubNet"


def chosen_tables(row: Row, score: str = ACCURACY) -> RenderableType:
    """The SubNet that a rule chose: its predictions, and its stages with their share of the latency. score: the metric."""
    title = escape(f"{row['device']}: {row['rule']['text']}")
    facts = Table(title=title, show_header=False, box=None, title_justify="left", padding=(0, 2, 0, 0))
    facts.caption, facts.caption_justify = _remarked(row["indistinct"]), "left"
    speed_up = f"{row['largest_ms'] / row['predicted_ms']:.3g} × faster than the largest"
    known, base = Uncertainty.model_validate(row["uncertainty"]), row["base"]
    if "measured_accuracy" in row:
        found = f"[bold]{uncertain(row['measured_accuracy'], known.samples, known.spread)}[/] measured"
    else:
        found = f"[bold]{predicted(row['predicted_accuracy'], known)}[/] predicted"
    facts.add_row("latency", f"[bold]{milliseconds(row['predicted_ms'])}[/] predicted", speed_up)
    facts.add_row(score, found, escape(f"{base['name']} {uncertain(base['accuracy'], base['samples'], known.spread)}"))
    facts.add_row("size", f"{amount(row['macs'])} MACs", f"{amount(row['parameters'])} parameters")
    facts.add_row("found", escape(row["stopped"]), f"digest {row['digest']}")
    if row["architecture"]["elsewhere"]:
        facts.add_row("", _choices(row["architecture"]["elsewhere"]), "")
    return Group(facts, _sections(row["architecture"]["sections"]))


def _remarked(*lines: str | None) -> str | None:
    """The text below a table: all lines that are not None; None if there are none."""
    return "\n".join(f"[yellow]{escape(line)}[/]" for line in lines if line) or None


def front_table(front: Front, score: str = ACCURACY) -> Table:
    """The winners of a search, with a note if every budget exceeds the latency of the whole network."""
    largest = front.largest
    note = None
    if all(winner.budget_ms >= largest.predicted_ms for winner in front.winners):
        note = f"every budget is above the whole network ({milliseconds(largest.predicted_ms)}); ask for less"
    known = front.uncertainty
    table = Table(title=escape(front.device), title_justify="left", caption_justify="left")
    table.caption = _remarked(note, indistinct(front.winners, known))
    for column in ("budget", "latency", score, "MACs", "parameters"):
        table.add_column(column, justify="right")
    table.add_column("digest")
    rows: list[tuple[str, Predicted, str]] = [
        (milliseconds(winner.budget_ms), winner, ranked_by(winner, known)) for winner in front.winners
    ]
    measured = uncertain(largest.predicted_accuracy, known.samples, known.spread)  # predictions begin with it
    rows.append(("largest", largest, measured))
    if front.given_accuracy is not None:  # an operator's latency does not depend on its weights
        as_given = largest.model_copy(update={"digest": AS_GIVEN})
        samples = None if score == FIDELITY.score else known.samples  # it answers as itself, by definition
        rows.append(("as given", as_given, uncertain(front.given_accuracy, samples)))
    for budget, row, accuracy in rows:
        numbers = (milliseconds(row.predicted_ms), accuracy, amount(row.macs), amount(row.parameters))
        table.add_row(budget, *numbers, row.digest)
    return table


def _sections(sections: Sequence[Row]) -> Table:
    table = Table("section")
    for column in ("blocks", "channels", "output"):
        table.add_column(column, justify="right")
    table.add_column("choices")
    table.add_column("predicted", justify="right")
    table.add_column("share", min_width=BAR_WIDTH)
    whole = sum(section["predicted_ms"] or 0.0 for section in sections) or 1.0
    for section in sections:
        choices = {kind: "/".join(map(choice_text, values)) for kind, values in section["choices"].items()}
        table.add_row(
            escape(section["name"]),
            f"{section['blocks']} of {section['all_blocks']}" if section["stage"] else "",
            str(section["channels"]),
            "×".join(map(str, section["output"])),
            escape(", ".join(f"{kind} {values}" for kind, values in choices.items())),
            milliseconds(section["predicted_ms"]),
            Bar(whole, 0, section["predicted_ms"] or 0.0, width=BAR_WIDTH, color="blue"),
        )
    return table


def comparison_table(compared: Row, score: str = ACCURACY) -> RenderableType:
    """Two SubNets layer by layer, with a line below each section; a layer that a SubNet lacks is shown as a dash."""
    first, second = compared["first"], compared["second"]
    table = Table(
        title=escape(f"{compared['device']}: {first['word']} and {second['word']}"),
        title_justify="left",
        caption=escape("channels, predicted latency [ms]; difference: the second less the first"),
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for name in ("block", "operator"):
        table.add_column(name)
    for side in (first, second):
        table.add_column(escape(side["word"]), justify="right")
        table.add_column("ms", justify="right")
    table.add_column("difference", justify="right")
    for _, rows in groupby(compared["layers"], lambda row: row["section"]):
        _add_section(table, list(rows))
    for name, text, difference in _totals(compared, score):
        table.add_row(name, "", "", text(first), "", text(second), difference, style="bold" if name == WHOLE else None)
    for side in (first, second):
        if side["elsewhere"]:
            table.add_row(escape(side["word"]), _choices(side["elsewhere"]))
    return table


def _totals(compared: Row, score: str) -> Iterator[tuple[str, Callable[[Row], str], str]]:
    """The rows below the layers: name, text of a side, difference."""
    first, second = compared["first"], compared["second"]
    known = Uncertainty.model_validate(compared["uncertainty"])
    points = 100 * (second["predicted_accuracy"] - first["predicted_accuracy"])
    yield WHOLE, lambda side: _number(side["predicted_ms"]), _difference(second["predicted_ms"] - first["predicted_ms"])
    yield score, lambda side: predicted(side["predicted_accuracy"], known), f"{points:+.2f} points"
    yield "MACs", lambda side: amount(side["macs"]), ""
    yield "parameters", lambda side: amount(side["parameters"]), ""


def _add_section(table: Table, rows: Sequence[Row]) -> None:
    for position, row in enumerate(rows):
        sides = [row["first"], row["second"]]
        titles = dict.fromkeys(side["title"] for side in sides if side)
        cells = [cell for side in sides for cell in _cells(side)]
        same = row["first"] == row["second"]
        table.add_row(
            escape(row["place"]),
            escape(" | ".join(titles)),
            *cells,
            "" if same else _difference(row["difference_ms"]),
            style="dim" if same else None,
            end_section=position == len(rows) - 1,
        )


def _cells(side: Row | None) -> tuple[str, str]:
    if side is None:
        return NOTHING, NOTHING
    before, after = side["channels"]
    return f"{before}→{after}", _number(side["predicted_ms"])


def _number(value_ms: float | None) -> str:
    return NOTHING if value_ms is None else f"{value_ms:.4g}"


def _difference(value_ms: float | None) -> str:
    if value_ms is None:
        return NOTHING
    color = "red" if value_ms > 0 else "green" if value_ms < 0 else "dim"
    return f"[{color}]{value_ms:+.3g}[/]"


def _choices(choices: Mapping[str, Choice]) -> str:
    return escape(", ".join(f"{name} {choice_text(choice)}" for name, choice in choices.items()))
