"""Folders of stages, named by digest, complete or absent, so that a killed run can resume.

A stage works in `<store>/<stage>/<key>.partial/`; `publish` records the digests of its files and renames the folder to
`<store>/<stage>/<key>/`. A folder whose files no longer match the record is quarantined, and its stage runs again.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.base.artifacts.aside import WORKED_IN, set_aside
from tasks.base.artifacts.digests import damage, record
from tasks.base.artifacts.files import read_json, write_bytes, write_json
from tasks.base.artifacts.lines import damaged_lines, write_whole_lines
from tasks.base.errors import UserError

RESULT_FILE = "result.json"
MADE_FROM_FILE = "made_from.json"
LINES = "*.jsonl"


@dataclass(frozen=True, slots=True)
class StageFolder:
    """The output folder of one stage under one key. `anew`: the stage runs again and replaces a complete folder."""

    final: Path
    anew: bool = False
    mended: tuple[str, ...] = ()
    """One message for each damaged file or folder that was quarantined when the folder was opened."""

    @property
    def complete(self) -> bool:
        """Whether an earlier run has published this folder and it may be reused."""
        return not self.anew and (self.final / RESULT_FILE).exists()

    @property
    def path(self) -> Path:
        """The folder to read if complete, else the folder to work in."""
        return self.final if self.complete else self.partial

    @property
    def partial(self) -> Path:
        """The folder to work in."""
        return self.final.with_name(self.final.name + WORKED_IN)

    def publish(self, result: dict[str, Any], made_from: "MadeFrom | None" = None) -> Path:
        """Write result.json and the digests of all files, and rename the partial folder to its final name."""
        partial = self.path
        write_json(partial / RESULT_FILE, result)
        if made_from:
            write_bytes(partial / MADE_FROM_FILE, (made_from.model_dump_json(indent=1) + "\n").encode())
        record(partial)
        replaced = self.final.with_name(self.final.name + ".old")
        if self.final.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            self.final.rename(replaced)
        partial.rename(self.final)
        shutil.rmtree(replaced, ignore_errors=True)
        return self.final

    def result(self) -> dict[str, Any]:
        """The result that the stage returned when it was published."""
        result: dict[str, Any] = read_json(self.final / RESULT_FILE)
        return result


class MadeFrom(BaseModel):
    """The settings and code that a folder was made from; they explain why a later key differs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: dict[str, Any]
    code: str

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """The record in a folder; None without a readable one."""
        try:
            return cls.model_validate_json((folder / MADE_FROM_FILE).read_bytes())
        except (OSError, ValidationError):
            return None


def _mend(folder: StageFolder) -> Iterator[str]:
    """Quarantine the damaged files of a folder, published or partial; yields one message for each."""
    if folder.final.exists() and not folder.anew and (what := damage(folder.final) or _no_result(folder.final)):
        place = set_aside(folder.final, folder.final)
        yield f"stored files are damaged ({what}): set aside as '{place}' and made again"
    for file in sorted(folder.partial.rglob(LINES)) if not folder.complete else ():
        if said := mend_lines(file, folder.partial):
            yield said


def _no_result(final: Path) -> str | None:
    """The fault of a result that matches its record but is unreadable or empty; None if it has content."""
    try:
        result = read_json(final / RESULT_FILE)
    except (OSError, ValueError):
        return f"{RESULT_FILE} cannot be read"
    return None if isinstance(result, dict) and result else f"{RESULT_FILE} has no result"


def mend_lines(file: Path, folder: Path) -> str | None:
    """Quarantine a file that has damaged lines and keep its intact lines; returns a message, or None if nothing was damaged."""
    if not (count := damaged_lines(file)):
        return None
    place = set_aside(file, folder)
    write_whole_lines(place, file)
    return f"{count} lines of {file.name} are damaged: set aside as '{place}', the others are used"


@dataclass(frozen=True, slots=True)
class Store:
    """The root folder that holds all stage folders."""

    root: Path

    def folder(self, stage: str, key: str, *, anew: bool = False) -> StageFolder:
        """The folder of `stage` under `key`; nothing is checked, repaired or created."""
        return StageFolder(self.root / stage / key, anew)

    def finished(self, stage: str) -> list[Path]:
        """Complete folders of `stage` under any key, the latest first."""
        found = [file.parent for file in (self.root / stage).glob(f"*/{RESULT_FILE}") if not file.parent.suffix]
        return sorted(found, key=lambda folder: folder.stat().st_mtime_ns, reverse=True)

    def open_stage(self, stage: str, key: str, *, anew: bool = False) -> StageFolder:
        """The folder of `stage` under `key`, checked; created when absent. UserError when the root cannot be written."""
        final = self.root / stage / key
        try:
            folder = StageFolder(final, anew, tuple(_mend(StageFolder(final, anew))))
            folder.path.mkdir(parents=True, exist_ok=True)
            if not os.access(folder.path, os.W_OK):
                raise PermissionError(13, "not writable")
        except OSError as error:
            raise UserError(
                f"output folder '{self.root}'",
                f"cannot be written ({error.strerror})",
                next_step="choose another with output_dir=PATH",
            ) from error
        return folder
