"""The exported files by format, and the bundle if there is one."""

from collections.abc import Sequence
from typing import Any

from tasks.schemas.exports import ExportedFile, Exports

Row = dict[str, Any]


def files_of(exports: Exports) -> Row:
    """`formats`: files, sizes and largest difference of each; `bundle`: its size, or None where none was asked for."""
    files: dict[str, list[ExportedFile]] = {}
    for card in exports.subnets:
        for name, file in card.files.items():
            files.setdefault(name, []).append(file)
    bundle = exports.bundle and exports.bundle.to_json()
    return {"formats": [_format(name, rows) for name, rows in files.items()], "bundle": bundle}


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
