"""`autotailor clean`: list the leftovers in an output folder by kind, and remove them on request."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.markup import escape
from rich.table import Table

from flows.cli.arguments import Arguments
from flows.cli.terminal import Answer, Terminal
from flows.storage import LockAddress, OutputPlace, local_folder
from flows.storage.cleaning import FolderCleaner, Leftover, UrlCleaner
from flows.storage.mirror import mirror_of
from tasks.base.errors import UserError

DAY_S = 24 * 3600.0
KINDS = {
    "unfinished": "stages that killed runs were at",
    "damaged": "quarantined, for people to look at",
    "stages": "complete stages",
    "contents": "of files at the URL",
}
"""In table order."""


class CleanConfig(BaseModel):
    """The output folder, the minimum age, and whether leftovers are removed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_dir: OutputPlace = Path("outputs")
    older_than_days: float = Field(default=7.0, ge=0, allow_inf_nan=False)
    stages: bool = False
    locks: LockAddress | None = Field(default=None, repr=False)
    remove: bool = False


def check(arguments: Arguments) -> Arguments:
    """The arguments. UserError for a word that is not an option."""
    if arguments.words:
        got, form = f"got '{arguments.words[0]}'", f"write autotailor clean output_dir={arguments.words[0]}"
        raise UserError("clean", got, allowed="options alone", next_step=form)
    return arguments


def execute(arguments: Arguments, config: CleanConfig) -> Answer:
    """Look for leftovers, remove them if requested, show them, and return them as JSON. UserError: one line."""
    terminal, cleaner = Terminal(), _cleaner(config)
    rows = _rows(cleaner.remove(terminal.say) if config.remove else cleaner.look())
    _show(config, rows, terminal)
    return {"output_dir": str(config.output_dir), "found": rows}


def _cleaner(config: CleanConfig) -> FolderCleaner | UrlCleaner:
    older_than_s, mirror = DAY_S * config.older_than_days, mirror_of(config.output_dir)
    if mirror is None:
        return FolderCleaner(local_folder(config.output_dir), older_than_s, config.stages, config.locks)
    if config.locks is not None:
        hint = "leave it out: machines that share a URL have their locks there"
        raise UserError("locks", "is of a folder on a disk that workers share", allowed="null", next_step=hint)
    return UrlCleaner(mirror, older_than_s, config.stages)


def _rows(found: Sequence[Leftover]) -> list[dict[str, Any]]:
    """A row for each kind in each state: the count, the size [bytes], and the age of the oldest [days]."""
    groups: dict[tuple[str, str], list[Leftover]] = {}
    for one in found:
        groups.setdefault((one.kind, one.state), []).append(one)
    return [
        {
            "kind": kind,
            "state": state,
            "count": len(group),
            "bytes": sum(one.size for one in group),
            "oldest_days": max((round(one.age_s / DAY_S, 2) for one in group if one.age_s is not None), default=None),
        }
        for (kind, state), group in sorted(groups.items(), key=lambda item: list(KINDS).index(item[0][0]))
    ]


def _show(config: CleanConfig, rows: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    meanings = {
        "used": "runs, nights, stages or exports refer to them",
        "recent": f"younger than older_than_days={config.older_than_days:g}",
        "old": "remove=true removes them",
        "at work": "another process is at them",
        "removed": "older than older_than_days",
    }
    title = escape(str(config.output_dir))
    table = Table("kind", "state", "number", "MiB", "oldest, days", "", title=title, title_justify="left")
    for row in rows:
        days = "–" if row["oldest_days"] is None else f"{row['oldest_days']:.1f}"
        meaning = f"{KINDS[row['kind']]}; {meanings[row['state']]}"
        mib = f"{row['bytes'] / 2**20:.1f}"
        table.add_row(row["kind"], row["state"], str(row["count"]), mib, days, escape(meaning))
    terminal.show(table)
    if not rows:
        terminal.say(f"nothing is left in '{config.output_dir}'")
