"""Colours and labels of points in charts. Plotly reads a subset of HTML in labels, so all text from the user is escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

Row = Mapping[str, Any]
"""A part of `report.json`."""

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#4c7fd9", "#e0823d", "#3f9f6b", "#d6504b", "#8d6cc9", "#8c929b"
TURQUOISE, GOLD, PINK = "#2aa5b8", "#b8860b", "#c2578f"
MAX_LINES = 16


def point_label(title: str, facts: Iterable[str], architecture: Sequence[str]) -> str:
    """A title, facts, and the architecture if there is one, a line for each stage; further lines are cut."""
    more = [f"… {len(architecture) - MAX_LINES} more"] if len(architecture) > MAX_LINES else []
    shown = [*facts, *([""] if architecture else []), *architecture[:MAX_LINES], *more]
    return "<br>".join([f"<b>{escape(title)}</b>", *map(escape, shown)])
