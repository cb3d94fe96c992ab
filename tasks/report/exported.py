"""What was exported, by format, and the bundle where one was made."""

from collections.abc import Iterable, Mapping
from typing import Any

Row = dict[str, Any]


def files_of(exports: Mapping[str, Any]) -> Row:
    """`formats`: files, sizes and largest difference of each; `bundle`: its size, or None where none was asked for."""
    files: dict[str, list[Mapping[str, Any]]] = {}
    for card in exports["subnets"]:
        for name, file in card["files"].items():
            files.setdefault(name, []).append(file)
    return {"formats": [_format(name, rows) for name, rows in files.items()], "bundle": exports.get("bundle")}


def _format(name: str, files: Iterable[Mapping[str, Any]]) -> Row:
    rows = list(files)
    good = [row for row in rows if row["state"] == "ok"]
    sizes = [row["bytes"] for row in good]
    checked = dict.fromkeys(
        f"{row['runtime']} {row['precision']}, {'on the device' if row['on_device'] else 'on this machine'}"
        for row in good
    )
    return {
        "name": name,
        "subnets": len(good),
        "failed": len(rows) - len(good),
        "bytes": sum(sizes),
        "smallest_bytes": min(sizes, default=None),
        "largest_bytes": max(sizes, default=None),
        "checked": list(checked),
        "max_difference": max((row["relative_difference"] for row in good), default=None),
        "tolerance": max((row["tolerance"] for row in good), default=None),
    }
