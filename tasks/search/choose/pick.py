"""Names of a SubNet on the command line: a budget, a digest, a file, an end or the knee of the front."""

import difflib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.base.errors import UserError
from tasks.base.schemas.chosen import ChosenSubNet
from tasks.base.schemas.front import Front
from tasks.base.schemas.subnets import Named
from tasks.search.choose.rules import front, knee

NAMES = ("largest", "fastest", "knee")
FORMS = f"NUMBERms, {', '.join(NAMES)}, a digest of 4 to 16 hex characters, or a file of search: FILE.json"
FILE_END = ".json"
SHOWN = 3
BUDGET = re.compile(r"([0-9.eE+-]+) ?ms")
DIGEST = re.compile(r"[0-9a-f]{4,16}")


@dataclass(frozen=True, slots=True)
class Pick:
    """One SubNet as named by the user. `budget_ms` is 0 for all kinds but budgets; `subnet`: the content of a file."""

    kind: Literal["budget", "digest", "name", "file"]
    word: str
    budget_ms: float = 0.0
    subnet: Named | None = None


def pick(word: str) -> Pick:
    """Parse `2ms`, `largest`, `fastest`, `knee`, the first characters of a digest, or a file. UserError for anything else."""
    if word.endswith(FILE_END):
        return Pick("file", word, subnet=ChosenSubNet.read(Path(word)).subnet)
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


def resolve(chosen: Pick, found: Front, rows: Sequence[Named], device: str) -> Named:
    """The SubNet that a pick means. found: the result of a search; if the pick is a budget, for this budget.

    rows: the SubNets that a digest can refer to. UserError: the digest matches none of them, or several.
    """
    if chosen.subnet:
        return chosen.subnet
    if chosen.kind == "budget":
        return next(row for row in found.winners if row.budget_ms == chosen.budget_ms)
    if chosen.kind == "name":
        ends = {"largest": found.largest, "fastest": found.fastest}
        return ends[chosen.word] if chosen.word in ends else knee(front(found), device)
    known = {row.digest: row for row in reversed(rows)}
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
