"""How a SubNet is named on the command line: by a budget, by its digest, or as an end or the knee of the front."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks.choose.rules import front, knee
from tasks.errors import UserError

Row = Mapping[str, Any]
NAMES = ("largest", "fastest", "knee")
FORMS = f"NUMBERms, {', '.join(NAMES)}, or a digest of 4 to 16 hex characters"
SHOWN = 3
BUDGET = re.compile(r"([0-9.eE+-]+) ?ms")
DIGEST = re.compile(r"[0-9a-f]{4,16}")


@dataclass(frozen=True, slots=True)
class Pick:
    """One SubNet as it was named. `budget_ms` is 0 for all but budgets."""

    kind: Literal["budget", "digest", "name"]
    word: str
    budget_ms: float = 0.0


def pick(word: str) -> Pick:
    """`2ms`, `largest`, `fastest`, `knee`, or the first characters of a digest. UserError for anything else."""
    if word in NAMES:
        return Pick("name", word)
    if match := BUDGET.fullmatch(word):
        try:
            budget_ms = float(match[1])
        except ValueError:
            budget_ms = math.nan
        if not (budget_ms > 0 and math.isfinite(budget_ms)):
            raise UserError(f"SubNet '{word}'", f"got a budget of {match[1]}", allowed="a number above 0")
        return Pick("budget", word, budget_ms)
    if DIGEST.fullmatch(word):
        return Pick("digest", word)
    raise UserError(f"SubNet '{word}'", "is no name of a SubNet", allowed=FORMS)


def resolve(chosen: Pick, found: Row, rows: Sequence[Row], device: str) -> Row:
    """The row that a pick means. found: `front.json`, searched for the pick's budget, if it is one.

    rows: SubNets with `digest` and `config` that a digest can be one of. UserError: none of them, or several.
    """
    if chosen.kind == "budget":
        return next(row for row in found["winners"] if row["budget_ms"] == chosen.budget_ms)
    if chosen.kind == "name":
        row: Row = knee(front(found), device) if chosen.word == "knee" else found[chosen.word]
        return row
    known = {row["digest"]: row for row in reversed(rows)}
    matches = sorted(digest for digest in known if digest.startswith(chosen.word))
    if len(matches) == 1:
        return known[matches[0]]
    where = f"SubNet '{chosen.word}'"
    if matches:
        raise UserError(where, f"stands for {len(matches)} SubNets", allowed=", ".join(matches[:SHOWN]))
    near = difflib.get_close_matches(chosen.word, known, n=SHOWN, cutoff=0.0)
    raise UserError(
        where,
        f"is none of the {len(known)} SubNets that are known on '{device}'",
        allowed=FORMS,
        next_step=f"near: {', '.join(near)}",
    )
