"""Leftovers in an output folder, on a disk or at a URL: listed by kind and state, and removed if nobody works on them.

On a disk, they are remains of killed runs, damaged folders that were quarantined, and unreferenced stages:

    stages/STAGE/KEY.partial        unfinished: a stage in progress, or one whose run was killed
    stages/STAGE/KEY.old            unfinished: a folder that was being replaced or removed
    stages/STAGE/KEY.damaged-N      damaged: a folder, or files of one; likewise subnets/KEY.damaged-N
    luts/DEVICE/part-….damaged      damaged: a part of a look-up table
    stages/STAGE/KEY                a complete stage

Anything else in the folder is not touched. A folder is renamed before its files are removed: even after a kill, every
folder under a final name is intact.

At a URL there are also contents that no folder refers to, from replaced stages and abandoned uploads. A content is in
use if the record of a folder, or of one being published (`flows.storage.publishing`), refers to it. Other contents can
be removed after a grace period: a machine that needs one again uploads it again. A stage in progress has a lock at the
URL (`flows.storage.leases`), whose holder keeps its partial results while it lives. A complete stage is removed by its
record, which marks its files as in use; the files are then removed as contents.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from flows.storage import EXPORTS_FOLDER, STAGES_FOLDER, SUBNETS_FOLDER, TABLES_FOLDER
from flows.storage.mirror import DAMAGED_END, Mirror
from flows.storage.objects import Objects
from flows.storage.publishing import CLEANING, DAMAGED, FILES, PUBLISHING, RECORD_END, UNFINISHED, each, record_of
from flows.storage.sharing import IDENTITY_FILE, RunLocks, StageElsewhere, referred_at, referred_in, run_locks
from tasks.base.artifacts import RESULT_FILE
from tasks.base.artifacts.files import WORKED_IN
from tasks.base.artifacts.folders import DIGEST_LENGTH, FileDigest
from tasks.base.errors import UserError
from tasks.measuring.lut.table import PARTS

LeftoverKind = Literal["unfinished", "damaged", "stages", "contents"]
"""Unfinished stages of killed runs, damaged folders quarantined, complete stages, and contents of files at a URL."""
LeftoverState = Literal["used", "recent", "old", "at work", "removed"]
"""Referred to; younger than the limit; removable; in use by a process; gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One leftover. name: its path in the output folder, or below the URL. size: bytes.

    age_s: time since the last write [s]; None if not determined, because it is in use.
    """

    kind: LeftoverKind
    name: str
    size: int
    age_s: float | None
    state: LeftoverState

    def now(self, state: LeftoverState) -> "Leftover":
        """The same leftover in another state."""
        return replace(self, state=state)


@dataclass(frozen=True, slots=True)
class _Ages:
    """The ages at which leftovers are removed. older_than_s: the minimum [s]. clock: [s since 1970]."""

    older_than_s: float
    clock: Callable[[], float]

    def leftover(self, kind: LeftoverKind, name: str, size: int, written_s: float) -> Leftover:
        """An unreferenced leftover."""
        age_s = max(0.0, self.clock() - written_s)
        state: LeftoverState = "old" if age_s > self.older_than_s else "recent"
        return Leftover(kind=kind, name=name, size=size, age_s=age_s, state=state)


CONTENT = re.compile(rf"{FILES}/[0-9a-f]{{64}}")
RECORDED = (PUBLISHING, STAGES_FOLDER, EXPORTS_FOLDER)
"""Places of records, in the order of reading: a record in `PUBLISHING` is removed once the folder has its own."""
ABANDONED_SECONDS = 24 * 3600.0
"""A folder that has been in publication for this long counts as abandoned [s]."""
TOGETHER = 100
"""Number of contents to remove between two checks of the lock."""


@dataclass(frozen=True, slots=True)
class ContentCleaner:
    """Removes unused contents of an output folder at a URL. older_than_s: the grace period [s]. clock: [s since 1970]."""

    mirror: Mirror
    older_than_s: float
    clock: Callable[[], float] = time.time

    def look(self) -> list[Leftover]:
        """The current contents. UserError if there is no output folder, or a record in it cannot be read."""
        self.check()
        objects, ages = self.mirror.objects, _Ages(self.older_than_s, self.clock)
        sizes = {name: size for name, size in objects.sizes(FILES).items() if CONTENT.fullmatch(name)}
        used = self._used()
        free = [name for name in sizes if name not in used]
        found = {
            name: ages.leftover("contents", name, sizes[name], written_s)
            for name, written_s in zip(free, each(free, objects.modified), strict=True)
        }
        return [
            found.get(name) or Leftover(kind="contents", name=name, size=size, age_s=None, state="used")
            for name, size in sizes.items()
        ]

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove unused and old contents. Publishers wait until the end of this.

        UserError: also if this machine was silent for so long that it was considered dead.
        """
        self.check()
        objects, locks = self.mirror.objects, self.mirror.locks
        with locks.held(CLEANING, say) as number:
            found = self.look()
            names = [*(one.name for one in found if one.state == "old"), *self._abandoned()]
            for first in range(0, len(names), TOGETHER):
                if not locks.is_latest(CLEANING, number):
                    got = "this machine was silent for too long, and another one may be at it"
                    raise UserError(CLEANING, got, next_step="the same command goes on")
                each(names[first : first + TOGETHER], objects.remove)
        return [one.now("removed") if one.state == "old" else one for one in found]

    def check(self) -> None:
        """UserError if the URL is not an output folder of AutoTailor."""
        if not self.mirror.is_there():
            got, hint = "has no output folder of AutoTailor", "write output_dir=URL as runs have it"
            raise UserError(f"storage '{self.mirror.objects.url}'", got, next_step=hint)

    def _used(self) -> set[str]:
        """Names of the contents that records refer to. An unreadable record raises, since it may refer to any content."""
        objects, abandoned = self.mirror.objects, set(self._abandoned())
        used = set[str]()
        for folder in RECORDED:
            records = [name for name in objects.names(folder) if name.endswith(RECORD_END) and name not in abandoned]
            for files in each(records, partial(_files, objects)):
                used.update(f"{FILES}/{digest.sha256}" for digest in files)
        return used

    def _abandoned(self) -> Iterator[str]:
        """Names of the records of folders whose publisher died."""
        objects = self.mirror.objects
        names = objects.names(PUBLISHING)
        for name, at_s in zip(names, each(names, objects.modified), strict=True):
            if 0 < at_s < self.clock() - ABANDONED_SECONDS:
                yield name


def _files(objects: Objects, record: str) -> Collection[FileDigest]:
    """The files that a record refers to; empty if the record was removed meanwhile."""
    content = objects.read(record)
    return () if content is None else record_of(objects, record.removesuffix(RECORD_END), content).files.values()


REPLACED = ".old"
NAMES = re.compile(
    rf"(?P<key>[0-9a-f]{{{DIGEST_LENGTH}}})"
    rf"(?P<passing>{re.escape(WORKED_IN)})?(?P<damaged>\.damaged-[0-9]+)?(?P<replaced>{re.escape(REPLACED)})?"
)
CLEANING_RUN = "clean"


@dataclass(frozen=True, slots=True)
class FolderCleaner:
    """Cleans an output folder on a disk. UserError: it is no output folder, or a leftover cannot be removed.

    older_than_s: minimum age for removal [s]. stages: whether complete stages count, too. locks: the database by which workers
    share the folder; None: each run has exclusive use of it. clock: [s since 1970].
    """

    folder: Path
    older_than_s: float
    stages: bool = False
    locks: str | None = None
    clock: Callable[[], float] = time.time

    def look(self) -> list[Leftover]:
        """The current leftovers. Nothing is written."""
        self._check()
        used = self._used()
        return [self._leftover(kind, path, used) for kind, path in self._found()]

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove old leftovers that nobody works on, and return all with their new states. say: is called with stages at work.

        UserError if a run is at work in the folder, or workers share it through a database.
        """
        self._check()
        if self.locks is None and (self.folder / IDENTITY_FILE).exists():
            got = f"null, and workers share '{self.folder}'"
            raise UserError("locks", got, next_step="write locks=ADDRESS as their runs have it")
        with run_locks(self.locks, self.folder, CLEANING_RUN) as locks:
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
        found = _Ages(self.older_than_s, self.clock).leftover(kind, name, size, written_s)
        return found.now("used") if kind == "stages" and name.removeprefix(f"{STAGES_FOLDER}/") in used else found

    def _removed(self, one: Leftover, locks: RunLocks, say: Callable[[str], None]) -> Leftover:
        """Remove an old leftover, unless another worker is at its stage now, or was since the look; its new state."""
        path, stages = self.folder / one.name, self.folder / STAGES_FOLDER
        match = NAMES.fullmatch(path.name)
        turn: AbstractContextManager[None] = nullcontext()
        if (
            one.kind != "damaged" and match is not None and path.is_relative_to(stages)
        ):  # nobody continues damaged folders
            turn = locks.stage(path.parent.relative_to(stages).as_posix(), match["key"])
        try:
            with turn:
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


_KEY = rf"[0-9a-f]{{{DIGEST_LENGTH}}}"
OF_STAGE = re.compile(rf"{UNFINISHED}/(?P<stage>.+/{_KEY})/[0-9]+(?:{re.escape(RECORD_END)}|/[0-9a-f]{{64}})")
RECORD = re.compile(rf"{STAGES_FOLDER}/.+/{_KEY}{re.escape(RECORD_END)}")


class _AtUrl(NamedTuple):
    """A leftover at the URL. names: its objects, in the order of removal. stage: the stage whose lock protects it, if any."""

    leftover: Leftover
    names: tuple[str, ...]
    stage: str | None


@dataclass(frozen=True, slots=True)
class UrlCleaner:
    """Cleans an output folder at a URL. UserError: it is no output folder, or cannot be read.

    older_than_s: minimum age for removal [s]. stages: whether complete stages count, too. clock: [s since 1970].
    """

    mirror: Mirror
    older_than_s: float
    stages: bool = False
    clock: Callable[[], float] = time.time

    def look(self) -> list[Leftover]:
        """The current leftovers. UserError: also if a run does not list its stages."""
        self._contents.check()
        return [*(one.leftover for one in self._found()), *self._contents.look()]

    def remove(self, say: Callable[[str], None]) -> list[Leftover]:
        """Remove old leftovers. If somebody may be at a stage, this waits for the lease of its lock."""
        self._contents.check()
        found = list(self._found())
        old = [one for one in found if one.leftover.state == "old"]
        silent = self.mirror.locks.silent({one.stage for one in old if one.stage}, say)
        used = referred_at(self.mirror) if self.stages else set[str]()
        described = [self._removed(one, silent, used) if one.leftover.state == "old" else one.leftover for one in found]
        return [*described, *self._contents.remove(say)]

    @property
    def _contents(self) -> ContentCleaner:
        return ContentCleaner(self.mirror, self.older_than_s, self.clock)

    def _found(self) -> Iterator[_AtUrl]:
        yield from self._unfinished()
        sizes = self.mirror.objects.sizes(DAMAGED)
        for name, written_s in self._written(sizes).items():
            yield _AtUrl(self._leftover("damaged", name, sizes[name], written_s), (name,), None)
        if self.stages:
            yield from self._complete()

    def _unfinished(self) -> Iterator[_AtUrl]:
        sizes = self.mirror.objects.sizes(UNFINISHED)
        written_s = self._written(sizes)
        stages: dict[str, list[str]] = {}
        for name in sizes:
            if match := OF_STAGE.fullmatch(name):
                stages.setdefault(match["stage"], []).append(name)
        for stage, names in stages.items():
            size, latest_s = sum(sizes[name] for name in names), max(written_s[name] for name in names)
            records_first = tuple(sorted(names, key=lambda name: not name.endswith(RECORD_END)))
            yield _AtUrl(self._leftover("unfinished", f"{UNFINISHED}/{stage}", size, latest_s), records_first, stage)

    def _complete(self) -> Iterator[_AtUrl]:
        used = referred_at(self.mirror)
        names = [name for name in self.mirror.objects.names(STAGES_FOLDER) if RECORD.fullmatch(name)]
        files = dict(zip(names, each(names, partial(_files, self.mirror.objects)), strict=True))
        for name, written_s in self._written(names).items():
            stage = name.removesuffix(RECORD_END)
            found = self._leftover("stages", stage, sum(file.size for file in files[name]), written_s)
            yield _AtUrl(found.now("used") if _in(used, stage) else found, (name,), stage)

    def _written(self, names: Iterable[str]) -> dict[str, float]:
        """Last write of each object [s since 1970]."""
        return dict(zip(names, each(names, self.mirror.objects.modified), strict=True))

    def _leftover(self, kind: LeftoverKind, name: str, size: int, written_s: float) -> Leftover:
        return _Ages(self.older_than_s, self.clock).leftover(kind, name, size, written_s)

    def _removed(self, one: _AtUrl, silent: set[str], used: set[str]) -> Leftover:
        """Remove an old leftover, unless somebody is at its stage, or refers to it since the look; its new state."""
        if one.stage is not None and one.stage not in silent:
            return one.leftover.now("at work")
        if one.leftover.kind == "stages" and _in(used, one.leftover.name):
            return one.leftover.now("used")
        for name in one.names:
            self.mirror.objects.remove(name)
        return one.leftover.now("removed")


def _in(used: set[str], stage: str) -> bool:
    return stage.removeprefix(f"{STAGES_FOLDER}/") in used
