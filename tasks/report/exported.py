"""The exported files by format, and the bundle if there is one."""

from collections.abc import Sequence
from typing import Any

from tasks.base.schemas.exports import Card, ExportedFile, Exports

Row = dict[str, Any]


def files_of(exports: Exports) -> Row:
    """The exported files of the winners. `formats`: files, sizes and largest difference of each.

    `bundle`: its size, or None if none was requested. `int8`: whether a file is quantised. `adapted`: facts about each SubNet
    that has adapted.
    """
    winners = {row.digest for row in exports.winners}
    cards = [card for card in exports.subnets if card.digest in winners]
    files: dict[str, list[ExportedFile]] = {}
    for card in cards:
        for name, file in card.files.items():
            files.setdefault(name, []).append(file)
    bundle = exports.bundle and exports.bundle.to_json()
    return {
        "formats": [_format(name, rows) for name, rows in files.items()],
        "bundle": bundle,
        "int8": any(map(int8_of, cards)),
        "adapted": {card.digest: card.adapted.to_json() for card in cards if card.adapted is not None},
    }


def int8_of(card: Card) -> Row | None:
    """The quantised file of a SubNet: test accuracy, latency and bytes beside those in fp32, layers that stay in fp32."""
    for file in card.files.values():
        if file.int8 is not None:
            found = file.int8
            return {
                "accuracy": found.accuracy.get("test"),
                "measured_ms": found.latency and found.latency.p50_ms,
                "fp32_ms": found.fp32_ms,
                "bytes": file.bytes,
                "fp32_bytes": found.fp32_bytes,
                "layers": found.layers,
                "kept_fp32": list(found.kept_fp32),
            }
    return None


def _format(name: str, files: Sequence[ExportedFile]) -> Row:
    good = [file for file in files if file.state == "ok"]
    sizes = [file.bytes for file in good if file.bytes is not None]
    checked = dict.fromkeys(
        f"{file.runtime} {file.precision}, {'on the device' if file.on_device else 'on this machine'}" for file in good
    )
    return {
        "name": name,
        "subnets": len(good),
        "failed": len(files) - len(good),
        "bytes": sum(sizes),
        "smallest_bytes": min(sizes, default=None),
        "largest_bytes": max(sizes, default=None),
        "checked": list(checked),
        "max_difference": max((one for file in good if (one := file.relative_difference) is not None), default=None),
        "tolerance": max((one for file in good if (one := file.tolerance) is not None), default=None),
    }
