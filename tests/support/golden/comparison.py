"""Golden files: JSON that people can read, and what differs between one and what is there now."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from math import isclose
from pathlib import Path
from typing import Any

LINE = 116
SHOWN = 12
"""Differences that a failure lists."""
UPDATE = "--update-golden"
ABSENT = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """One place of a golden file whose value is another one now."""

    key: str
    golden: Any
    now: Any

    def __str__(self) -> str:
        return f"  {self.key or 'all'}: golden {_short(self.golden)}, now {_short(self.now)}"


def differences(golden: Any, now: Any, rtol: float, key: str = "") -> Iterator[Difference]:
    """Places where plain data differ. Floats may differ by `rtol`, relative; all else must be equal, types included."""
    if isinstance(golden, dict) and isinstance(now, dict):
        for name in dict.fromkeys((*golden, *now)):
            inner = f"{key}.{name}" if key else str(name)
            yield from differences(golden.get(name, ABSENT), now.get(name, ABSENT), rtol, inner)
    elif isinstance(golden, list) and isinstance(now, list):
        for at, (before, after) in enumerate(zip_longest(golden, now, fillvalue=ABSENT)):
            yield from differences(before, after, rtol, f"{key}[{at}]")
    elif isinstance(golden, float) and isinstance(now, float):
        if not isclose(golden, now, rel_tol=rtol, abs_tol=0.0):
            yield Difference(key, golden, now)
    elif type(golden) is not type(now) or golden != now:
        yield Difference(key, golden, now)


def check(path: Path, value: Any, rtol: float, *, update: bool) -> None:
    """Compare plain data with a golden file, or write it. AssertionError: which key, what is golden, and what is there now."""
    now = json.loads(json.dumps(value))
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(now) + "\n", encoding="utf-8")
        return
    assert path.exists(), f"golden file {path.name} is not there; write it with pytest {UPDATE}"
    found = list(differences(json.loads(path.read_text(encoding="utf-8")), now, rtol))
    more = [f"  and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    lines = [f"{path.name} differs; where that is meant: pytest {UPDATE}", *map(str, found[:SHOWN]), *more]
    assert not found, "\n".join(lines)


def written(value: Any, indent: int = 0) -> str:
    """JSON in which whatever fits stands on one line."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= LINE or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (indent + 1)
    if isinstance(value, dict):
        rows = [f"{inner}{json.dumps(name)}: {written(one, indent + 1)}" for name, one in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    if all(not isinstance(one, dict | list) for one in value):
        return (
            "[\n"
            + "\n".join(_filled([json.dumps(one, ensure_ascii=False) for one in value], inner))
            + "\n"
            + " " * indent
            + "]"
        )
    return "[\n" + ",\n".join(inner + written(one, indent + 1) for one in value) + "\n" + " " * indent + "]"


def _filled(items: list[str], inner: str) -> Iterator[str]:
    line = inner
    for at, item in enumerate(items):
        text = item + ("," if at + 1 < len(items) else "")
        if line != inner and len(line) + 1 + len(text) > LINE:
            yield line
            line = inner
        line += text if line == inner else f" {text}"
    yield line


def _short(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LINE else text[:LINE] + "…"
