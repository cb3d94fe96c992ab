"""`autotailor clean`: contents at a URL that no stage refers to any more, told, and removed where that is asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich.markup import escape
from rich.table import Table

from flows.cli.arguments import CLEAN, Arguments
from flows.cli.terminal import Terminal
from flows.compose import compose_config
from flows.storage.address import OutputPlace
from flows.storage.cleaning import Cleaner, ContentSizes
from flows.storage.mirror import mirror_of
from flows.validate import validate
from tasks.errors import UserError

CleanAnswer = Mapping[str, Any]
HOUR_S = 3600.0


class CleanConfig(BaseModel):
    """What is cleaned, from which age on, and whether anything is removed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    output_dir: OutputPlace = Path("outputs")
    older_than_h: float = Field(default=24.0, ge=0, allow_inf_nan=False)
    remove: bool = False


def config_of(arguments: Arguments) -> CleanConfig:
    """The validated config. UserError: a word that is no option."""
    if arguments.words:
        got, form = f"got '{arguments.words[0]}'", f"write autotailor {CLEAN} output_dir=URL"
        raise UserError(CLEAN, got, allowed="options alone", next_step=form)
    return validate(CleanConfig, compose_config(CLEAN, arguments.overrides, arguments.config_folder))


def execute(arguments: Arguments) -> CleanAnswer:
    """Look, remove where that is asked for, show what there is, and return it as JSON. UserError: one line."""
    config, terminal = config_of(arguments), Terminal()
    mirror = mirror_of(config.output_dir)
    if mirror is None:
        got, form = f"'{config.output_dir}' is a folder of this machine", f"write autotailor {CLEAN} output_dir=URL"
        raise UserError("output_dir", got, allowed="a URL that machines share", next_step=form)
    cleaner = Cleaner(mirror, HOUR_S * config.older_than_h)
    found = cleaner.remove(terminal.say) if config.remove else cleaner.look()
    rows = {"used": found.used, "recent": found.recent, "removed" if config.remove else "unused": found.unused}
    _show(config, rows, terminal)
    return {"output_dir": str(config.output_dir), **{name: _told(sizes) for name, sizes in rows.items()}}


def _told(sizes: ContentSizes) -> dict[str, int]:
    return {"files": len(sizes), "bytes": sum(sizes.values())}


def _show(config: CleanConfig, rows: Mapping[str, ContentSizes], terminal: Terminal) -> None:
    meanings = {
        "used": "stages and exports refer to them",
        "recent": f"nothing refers to them, and they are younger than {config.older_than_h:g} h",
        "unused": "nothing refers to them: remove=true removes them",
        "removed": "nothing referred to them",
    }
    table = Table("contents", "files", "MiB", "", title=escape(str(config.output_dir)), title_justify="left")
    for name, sizes in rows.items():
        table.add_row(name, str(len(sizes)), f"{sum(sizes.values()) / 2**20:.1f}", escape(meanings[name]))
    terminal.show(table)
