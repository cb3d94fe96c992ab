"""The way back: everything is written beside its place and checked, then changes places.

Where a file of the backup is damaged, or a place is taken, nothing has changed. What was in a place stays beside it.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tasks.base.errors import UserError
from tasks.operations.backup.databases import PostgresDatabase, SqliteDatabase
from tasks.operations.backup.manifest import DUMP, BackupPart, Manifest
from tasks.operations.backup.store import BackupStore, free_bytes

RESTORING = ".restoring"
SCRIPT = "script.sql"
BEFORE = "before"
RestoreTarget = Path | SqliteDatabase | PostgresDatabase
"""Where a part goes: a folder or a database."""


@dataclass(slots=True)
class _Change:
    """A part that is ready. apply: puts it into its place; where what was there is now, None without."""

    part: str
    where: str
    apply: Callable[[], Path | None]


def restore(
    store: BackupStore, manifest: Manifest, targets: Mapping[str, RestoreTarget], *, overwrite: bool, stamp: str
) -> dict[str, Path | None]:
    """Restore the parts that have a target; for each, where what was in its place is now.

    stamp: of the names of what was there. UserError: a part is of another kind than its target, a place is taken and
    `overwrite` is false, or the backup is damaged.
    """
    for name, target in targets.items():
        _check(name, manifest.parts[name], target, overwrite)
    with ExitStack() as beside:
        changes = [_ready(store, name, manifest.parts[name], target, stamp, beside) for name, target in targets.items()]
        changes.sort(key=lambda change: not change.where.startswith("postgresql"))  # a server may still refuse
        done: dict[str, Path | None] = {}
        for change in changes:
            try:
                done[change.part] = change.apply()
            except (UserError, OSError) as error:
                so_far = f"restored so far: {', '.join(done) or 'nothing'}"
                raise UserError(f"{change.part} '{change.where}'", f"{error}", next_step=so_far) from error
    return done


def _check(name: str, part: BackupPart, target: RestoreTarget, overwrite: bool) -> None:
    kind = "folder" if isinstance(target, Path) else target.kind
    where = str(target) if isinstance(target, Path) else target.where
    if kind != part.kind:
        raise UserError(
            name, f"'{where}' is of kind {kind}, and the backup's is of kind {part.kind}", allowed=part.kind
        )
    taken = _is_taken(target) if isinstance(target, Path) else target.exists()
    if taken and not overwrite:
        what = "replaces it" if kind == "postgresql" else "puts it aside"
        raise UserError(
            name, f"'{where}' has something in it", next_step=f"overwrite=true {what}, {name}=ELSEWHERE leaves it"
        )
    place = target if isinstance(target, Path) else target.file if isinstance(target, SqliteDatabase) else None
    if place is not None and (free := free_bytes(place.absolute().parent)) < part.size:
        got = f"takes {part.size / 2**20:.0f} MiB, and '{place.absolute().parent}' has {free / 2**20:.0f} MiB left"
        raise UserError(name, got, next_step="make room, or restore it elsewhere")


def _is_taken(folder: Path) -> bool:
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def _ready(
    store: BackupStore, name: str, part: BackupPart, target: RestoreTarget, stamp: str, beside: ExitStack
) -> _Change:
    """A part, written and checked beside its place."""
    if isinstance(target, Path):
        folder = _beside(target, beside)
        folder.mkdir()
        for inner, kept in part.files.items():
            (folder / inner).parent.mkdir(parents=True, exist_ok=True)
            store.copy_out(kept, folder / inner)
        return _Change(name, str(target), lambda: _put_folder(folder, target, stamp))
    dump = part.files[DUMP]
    if isinstance(target, SqliteDatabase):
        file = _beside(target.file, beside)
        store.copy_out(dump, file)
        return _Change(name, target.where, lambda: _put_database(file, target, stamp))
    folder = Path(beside.enter_context(tempfile.TemporaryDirectory(prefix="autotailor-")))  # its user's alone
    store.copy_out(dump, folder / DUMP)
    return _Change(name, target.where, lambda: target.load(folder / DUMP, folder / SCRIPT))


def _beside(place: Path, stack: ExitStack) -> Path:
    """A free name beside a place, on the same file system; what is left there goes in the end. Of a volume: inside."""
    place.absolute().parent.mkdir(parents=True, exist_ok=True)
    found = place / RESTORING if place.is_mount() else place.with_name(f".{place.name}{RESTORING}")
    _remove(found)
    stack.callback(_remove, found)
    return found


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put_folder(folder: Path, target: Path, stamp: str) -> Path | None:
    before = None
    if target.is_mount():
        return _put_into_volume(folder, target, stamp)
    if _is_taken(target):
        before = target.with_name(f"{target.name}.{BEFORE}-{stamp}")
        target.rename(before)
    elif target.exists():
        target.rmdir()
    folder.rename(target)
    return before


def _put_into_volume(folder: Path, target: Path, stamp: str) -> Path | None:
    """A volume has a fixed name: its content changes in its place."""
    before, old = target / f"{BEFORE}-{stamp}", [path for path in target.iterdir() if path != folder]
    if old:
        before.mkdir()
    for path in old:
        path.rename(before / path.name)
    for path in folder.iterdir():
        path.rename(target / path.name)
    return before if old else None


def _put_database(file: Path, target: SqliteDatabase, stamp: str) -> Path | None:
    """What is beside the old file goes with it: read with the new one it would damage it."""
    before = target.file.with_name(f"{target.file.name}.{BEFORE}-{stamp}")
    found = target.files()
    for old in found:
        old.rename(before.with_name(before.name + old.name.removeprefix(target.file.name)))
    file.rename(target.file)
    return before if found else None
