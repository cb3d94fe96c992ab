"""An output folder on a disk: remains of killed runs, damaged folders that were set aside, and unreferenced stages.

    stages/STAGE/KEY.partial        unfinished: a stage in progress, or one whose run was killed
    stages/STAGE/KEY.old            unfinished: a folder that was being replaced or removed
    stages/STAGE/KEY.damaged-N      damaged: a folder, or files of one; likewise subnets/KEY.damaged-N
    luts/DEVICE/part-….damaged      damaged: a part of a look-up table
    stages/STAGE/KEY                a complete stage

Anything else in the folder is not touched. A folder is renamed before its files are removed: even after a kill, every folder
under a final name is intact.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from flows.storage.cleaning.leftovers import Leftover, LeftoverKind, LeftoverState, by_age
from flows.storage.cleaning.references import referred_in
from flows.storage.layout import STAGES_FOLDER, SUBNETS_FOLDER, TABLES_FOLDER
from flows.storage.measured import DAMAGED_END
from flows.storage.sharing import RunLocks, StageElsewhere, run_locks
from flows.storage.sharing.opened import IDENTITY_FILE
from tasks.base.artifacts import RESULT_FILE
from tasks.base.artifacts.aside import WORKED_IN
from tasks.base.artifacts.digests import DIGEST_LENGTH
from tasks.base.errors import UserError
from tasks.measuring.lut.parts import PARTS

REPLACED = ".old"
NAMES = re.compile(
    rf"(?P<key>[0-9a-f]{{{DIGEST_LENGTH}}})"
    rf"(?P<passing>{re.escape(WORKED_IN)})?(?P<damaged>\.damaged-[0-9]+)?(?P<replaced>{re.escape(REPLACED)})?"
)
CLEANING = "clean"


@dataclass(frozen=True, slots=True)
class FolderCleaner:
    """Cleans an output folder on a disk (`flows.storage.cleaning.leftovers.OutputCleaner`).

    older_than_s: minimum age for removal [s]. stages: whether complete stages count, too. locks: the database by which workers
    share the folder; None: each run has exclusive use of it. clock: [s since 1970].
    """

    folder: Path
    older_than_s: float
    stages: bool = False
    locks: str | None = None
    clock: Callable[[], float] = time.time

    def look(self) -> list[Leftover]:
        """The current leftovers."""
        self._check()
        used = self._used()
        return [self._leftover(kind, path, used) for kind, path in self._found()]

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove old leftovers. UserError if a run is at work in the folder, or workers share it through a database."""
        self._check()
        if self.locks is None and (self.folder / IDENTITY_FILE).exists():
            got = f"null, and workers share '{self.folder}'"
            raise UserError("locks", got, next_step="write locks=ADDRESS as their runs have it")
        with run_locks(self.locks, self.folder, CLEANING) as locks:
            found = self.look()
            return [self._removed(one, locks, say) if one.state == "old" else one for one in found]

    def _check(self) -> None:
        if not (self.folder / STAGES_FOLDER).is_dir():
            hint = "write output_dir=FOLDER as runs have it"
            raise UserError(f"output folder '{self.folder}'", f"has no '{STAGES_FOLDER}'", next_step=hint)

    def _used(self) -> set[str]:
        return referred_in(self.folder) if self.stages else set()

    def _found(self) -> Iterator[tuple[LeftoverKind, Path]]:
        for place in (STAGES_FOLDER, SUBNETS_FOLDER):
            for parent, folders, _ in os.walk(self.folder / place):
                for path in [Path(parent, name) for name in sorted(folders)]:
                    if (kind := _kind(path)) is None:
                        continue
                    folders.remove(path.name)
                    if kind != "stages" or self.stages:
                        yield kind, path
        for file in sorted((self.folder / TABLES_FOLDER).glob(f"*/{PARTS}{DAMAGED_END}")):
            yield "damaged", file

    def _leftover(self, kind: LeftoverKind, path: Path, used: set[str]) -> Leftover:
        (size, written_s), name = _measured(path), path.relative_to(self.folder).as_posix()
        age_s = max(0.0, self.clock() - written_s)
        is_used = kind == "stages" and name.removeprefix(f"{STAGES_FOLDER}/") in used
        state: LeftoverState = "used" if is_used else by_age(age_s, self.older_than_s)
        return Leftover(kind=kind, name=name, size=size, age_s=age_s, state=state)

    def _removed(self, one: Leftover, locks: RunLocks, say: Callable[[str], None]) -> Leftover:
        """Remove an old leftover, unless another worker is at its stage now, or was since the look; its new state."""
        path = self.folder / one.name
        try:
            with self._turn(one.kind, path, locks):
                if locks.have_others and (now := self._leftover(one.kind, path, self._used())).state != "old":
                    return now
                _remove(path)
        except StageElsewhere as elsewhere:
            say(str(elsewhere))
            return one.now("at work")
        except OSError as error:
            hint = "the same command goes on once its user may remove it"
            raise UserError(f"'{path}'", f"cannot be removed ({error.strerror})", next_step=hint) from error
        return one.now("removed")

    def _turn(self, kind: LeftoverKind, path: Path, locks: RunLocks) -> AbstractContextManager[None]:
        """The lock of a stage's folder; no lock for damaged folders, since nobody continues these."""
        stages, match = self.folder / STAGES_FOLDER, NAMES.fullmatch(path.name)
        if kind == "damaged" or match is None or not path.is_relative_to(stages):
            return nullcontext()
        return locks.stage(path.parent.relative_to(stages).as_posix(), match["key"])


def _kind(path: Path) -> LeftoverKind | None:
    """The kind of a folder by its name; None if it is not one of this project's."""
    match = NAMES.fullmatch(path.name)
    if match is None:
        return None
    if match["replaced"] or match["passing"]:
        return "unfinished"
    if match["damaged"]:
        return "damaged"
    return "stages" if (path / RESULT_FILE).exists() else None


def _measured(path: Path) -> tuple[int, float]:
    """Size of all files [bytes], and the last write of any of them [s since 1970]. Files removed meanwhile are left out."""
    size, written_s = 0, 0.0
    inner = (Path(parent, name) for parent, folders, files in os.walk(path) for name in (*folders, *files))
    for one in (path, *inner):
        with suppress(FileNotFoundError):
            state = one.lstat()
            size += 0 if one.is_dir() else state.st_size
            written_s = max(written_s, state.st_mtime)
    return size, written_s


def _remove(path: Path) -> None:
    """Remove a file or a folder; a folder is renamed first."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    if not path.name.endswith(REPLACED):
        gone = path.with_name(path.name + REPLACED)
        if gone.exists():
            shutil.rmtree(gone)
        path = path.rename(gone)
    shutil.rmtree(path)
