"""The whole pipeline on real digits with a small network: what it makes, and what a change makes run again."""

from typing import Any


def _worked(result: dict[str, Any]) -> list[str]:
    return [row["stage"] for row in result["stages"] if not row["cached"]]
