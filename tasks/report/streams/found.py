"""SubNets on streams, as parts of a report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.base.schemas.streams import STREAM_FILE, StreamedNetwork
from tasks.report.looks import Row
from tasks.report.streams.terminal import events_text, share_text


def streams(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The content of each `stream.json`; each method also has its share of the source's error, and its events, as texts."""
    rows = []
    for folder in folders:
        found = StreamedNetwork.read(folder / STREAM_FILE)
        row = found.to_json()
        for method, one in zip(row["methods"], found.methods, strict=True):
            method |= {"of_source": share_text(one, found), "events_text": events_text(one)}
        rows.append(row)
    return rows


def card(row: Row) -> list[dict[str, str]]:
    """The method with the least error on a stream, against the source; empty without a source, or without another method."""
    errors = row["errors_percent"]
    others = {method: error for method, error in errors.items() if method != "source"}
    if "source" not in errors or not others:
        return []
    best = min(others, key=lambda method: others[method])
    note = f"{best}; as it is {errors['source']:.1f} %; {row['images']} images"
    label = f"{row['title']}: error on a {row['settings']['stream']} stream"
    return [{"label": label, "value": f"{others[best]:.1f} %", "note": note, "device": ""}]
