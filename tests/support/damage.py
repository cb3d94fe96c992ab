"""Ways to damage a file, as disks and careless hands do."""

import json
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]


def flip(path: Path, place: float = 0.5) -> None:
    """One bit of the byte at this share of the file."""
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)


def flip_late(path: Path) -> None:
    """One bit near the end, where tensors are."""
    flip(path, 0.95)


def truncate(path: Path) -> None:
    """To half."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    """By JSON of another shape."""
    path.write_text(json.dumps({"something": [1, {"else": None}]}))


DAMAGES: tuple[Damage, ...] = (flip, flip_late, truncate, empty, delete, replace)
