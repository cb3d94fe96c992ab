"""Complete stages that are referred to: by runs, which have a list in their folder, and by the latest nights.

    runs/KEY/stages.json      the stages of a run, as STAGE/KEY, with keys as their folders have them

A run adds to its list while it works, and reduces the list to its own stages at its end. Earlier stages, from other code or
inputs, are therefore referred to until the run is complete again. Stages of a night are referred to until the next night of its
network, which compares look-up tables with them.
"""

import threading
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flows.storage.layout import NIGHTS_FOLDER, RUNS_FOLDER
from flows.storage.mirror import Mirror
from tasks.base.artifacts import write_json
from tasks.base.errors import UserError
from tasks.operations.nightly import History

LIST_FILE = "stages.json"
_NAMES = TypeAdapter(list[str])


class StageList:
    """The list of a run, shared by the threads of a process. folder: the run's."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / LIST_FILE
        self._turn = threading.Lock()

    def add(self, *names: str) -> bool:
        """Add references to stages. False if the list already has them. UserError if it cannot be read."""
        with self._turn:
            known = _read(self.file.read_bytes(), self.file) if self.file.exists() else None
            if known is not None and known.issuperset(names):
                return False
            write_json(self.file, sorted({*(known or ()), *names}))
            return True

    def keep(self, names: Iterable[str]) -> None:
        """Refer to these stages only."""
        with self._turn:
            write_json(self.file, sorted(set(names)))


def referred_in(folder: Path) -> set[str]:
    """Stages that runs and nights in an output folder refer to. UserError if a run's list is missing or unreadable."""
    found = _of_nights(folder / NIGHTS_FOLDER)
    for run in sorted(path for path in (folder / RUNS_FOLDER).glob("*") if path.is_dir()):
        file = run / LIST_FILE
        found |= _read(file.read_bytes() if file.exists() else None, run)
    return found


def referred_at(mirror: Mirror) -> set[str]:
    """Stages that runs and nights at a URL refer to."""
    mirror.nights.fetch()
    found = _of_nights(mirror.folder / NIGHTS_FOLDER)
    names = mirror.objects.names(RUNS_FOLDER)
    for run in sorted({"/".join(name.split("/")[:2]) for name in names}):
        found |= _read(mirror.objects.read(f"{run}/{LIST_FILE}"), f"{mirror.objects.url}/{run}")
    return found


def _of_nights(folder: Path) -> set[str]:
    """Stages of each network's latest night. Unreadable records are ignored, as the next night does not use them."""
    latest = History(folder).latest(lambda line: None)
    return {f"{stage.stage}/{stage.key}" for night in latest for stage in night.stages}


def _read(content: bytes | None, where: Path | str) -> set[str]:
    if content is None:
        hint = "give its command again, or delete this folder if the run is of no use any more"
        raise UserError(f"run '{where}'", "does not tell its stages: an earlier version made it", next_step=hint)
    try:
        return set(_NAMES.validate_json(content))
    except ValidationError as error:
        hint = f"remove {LIST_FILE} there, and give the run's command again"
        raise UserError(f"'{where}'", "its list of stages cannot be read", next_step=hint) from error
