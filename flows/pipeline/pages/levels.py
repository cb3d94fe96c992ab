"""Facts on the levels of a device, in the style of `flows.pipeline.pages.facts`."""

from collections import Counter

from flows.pipeline.pages.facts import MOST_FAILURES, Facts
from tasks.base.pages.text import count
from tasks.export.operating_points import Levels


def levels(result: Levels) -> Facts:
    """The number of combinations in total, on the front, and kept, by format."""
    kept = Counter(row.format for row in result.rows if row.kept)
    return {
        "combinations": count(len(result.rows)),
        "on the front": count(sum(row.on_front for row in result.rows)),
        "kept": f"{sum(kept.values())} ({', '.join(f'{number} {form}' for form, number in kept.items())})",
    }


def left_out(result: Levels) -> Facts:
    """SubNets that lack a row in some format."""
    rows = result.left_out
    named = "; ".join(f"{row.digest} in {row.format}: {row.reason}" for row in rows[:MOST_FAILURES])
    return {"left out": f"{len(rows)}: {named}"} if rows else {}
