"""The folder with backups: each file once, by its sha256, and a manifest for each backup, which is written last.

    FOLDER/files/ab/SHA256        contents
    FOLDER/backups/TIME-DIGEST.json    manifests; DIGEST is the beginning of the sha256 of the manifest itself

So a later backup adds what is new, and one that is killed leaves those before it as they were.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from adaptive_runtime.base.files import sha256_of
from tasks.base.artifacts.files import json_bytes, write_bytes
from tasks.base.errors import UserError
from tasks.operations.backup.manifest import BackedUpFile, Manifest

FILES, BACKUPS, END = "files", "backups", ".json"
DIGEST_DIGITS = 16
CHUNK_BYTES = 1 << 20
PARTIAL = ".partial"
DUMPING = ".dumping-"


class BackupStore:
    """Backups of one folder. Its user alone can read it: it has hashes of tokens, and keys where they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files, self._backups = folder / FILES, folder / BACKUPS
        self._whole: set[str] = set()

    def make(self) -> None:
        """Make the folder where it is new. UserError: it has something else in it, or cannot be written."""
        where = f"folder '{self.folder}'"
        try:
            if self.folder.exists() and not self._backups.is_dir() and any(self.folder.iterdir()):
                raise UserError(where, "has something else in it", next_step="name a new folder for backups")
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for inner in (self._files, self._backups):
                inner.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise UserError(where, f"cannot be written ({error.strerror})", next_step="name another folder") from error

    def sweep(self) -> None:
        """Remove what backups that were killed have left half written; for whoever has the folder alone."""
        for file in self._files.glob(f".*{PARTIAL}"):
            file.unlink()
        for folder in self.folder.glob(f"{DUMPING}*"):
            shutil.rmtree(folder)

    def put(self, file: Path) -> BackedUpFile:
        """Keep a file; what it was. A copy that is there and damaged is replaced. OSError: it cannot be read or kept."""
        facts = file.stat()
        digest = sha256_of(file)
        if not self._has(digest):
            partial = self._files / f".{os.getpid()}{PARTIAL}"
            try:
                digest = copy(file, partial)  # of what was copied, where the file has changed meanwhile
                self.path(digest).parent.mkdir(exist_ok=True, mode=0o700)
                partial.replace(self.path(digest))
            finally:
                partial.unlink(missing_ok=True)
            self._whole.add(digest)
        size = self.path(digest).stat().st_size
        return BackedUpFile(sha256=digest, size=size, mode=facts.st_mode & 0o777, mtime_ns=facts.st_mtime_ns)

    def path(self, digest: str) -> Path:
        """Where the content of a sha256 is kept."""
        return self._files / digest[:2] / digest

    def finish(self, manifest: Manifest) -> str:
        """Write a manifest, by which its backup is there; its name."""
        content = json_bytes(manifest.to_json())
        made = datetime.fromisoformat(manifest.made_at).astimezone(UTC)
        name = f"{made:%Y%m%dT%H%M%S.%fZ}-{hashlib.sha256(content).hexdigest()[:DIGEST_DIGITS]}"
        write_bytes(self._backups / f"{name}{END}", content)
        return name

    def names(self) -> list[str]:
        """Of all backups, the latest last. UserError: the folder has none."""
        found = sorted(file.name.removesuffix(END) for file in self._backups.glob(f"[0-9]*{END}"))
        if not found:
            raise UserError(f"folder '{self.folder}'", "has no backup", next_step="autotailor backup FOLDER makes one")
        return found

    def read(self, name: str | None = None) -> Manifest:
        """A backup, the latest one by default. UserError: there is none of that name, or its manifest is damaged."""
        known = self.names()
        if name is not None and name not in known:
            raise UserError("at", f"'{name}' is no backup of '{self.folder}'", allowed=", ".join(known))
        chosen = name or known[-1]
        file = self._backups / f"{chosen}{END}"
        if not sha256_of(file).startswith(chosen.rpartition("-")[2]):
            others = ", ".join(other for other in known if other != chosen)
            hint = f"choose another with at=NAME: {others}" if others else "make another one: autotailor backup FOLDER"
            raise UserError(f"backup '{file}'", "is damaged", next_step=hint)
        return Manifest.read(file)

    def damage(self, manifest: Manifest) -> Iterator[str]:
        """A line for each file of a backup that is missing, or not as it was. Every byte is read."""
        for name, part in manifest.parts.items():
            for inner, kept in part.files.items():
                path = self.path(kept.sha256)
                if not path.exists():
                    yield f"{name}: {inner} is missing in the backup"
                elif sha256_of(path) != kept.sha256:
                    yield f"{name}: {inner} is damaged in the backup"

    def copy_out(self, kept: BackedUpFile, target: Path) -> None:
        """Write a file as it was. UserError: it is missing here, or damaged."""
        source = self.path(kept.sha256)
        where = f"file '{source}' of the backup"
        if not source.exists():
            raise UserError(where, "is missing", next_step="nothing was restored; choose another backup with at=NAME")
        if copy(source, target) != kept.sha256:
            raise UserError(where, "is damaged", next_step="nothing was restored; choose another backup with at=NAME")
        target.chmod(kept.mode)
        os.utime(target, ns=(kept.mtime_ns, kept.mtime_ns))

    def prune(self, keep: int) -> int:
        """Leave the latest `keep` backups, and what they need; how many went. UserError: one that stays is damaged."""
        names = self.names()
        needed = {
            kept.sha256
            for name in names[-keep:]
            for part in self.read(name).parts.values()
            for kept in part.files.values()
        }
        for name in names[:-keep]:
            (self._backups / f"{name}{END}").unlink()
        for file in self._files.glob("*/*"):
            if file.name not in needed:
                file.unlink()
        return max(0, len(names) - keep)

    def _has(self, digest: str) -> bool:
        """Whether the content is here, as it was: read once."""
        if digest not in self._whole and self.path(digest).is_file() and sha256_of(self.path(digest)) == digest:
            self._whole.add(digest)
        return digest in self._whole


def copy(source: Path, target: Path) -> str:
    """Copy a file onto the disk, readable for its user alone; the sha256 of what was copied."""
    digest = hashlib.sha256()
    target.touch(mode=0o600)
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(CHUNK_BYTES):
            digest.update(chunk)
            writer.write(chunk)
        writer.flush()
        os.fsync(writer.fileno())
    return digest.hexdigest()


def free_bytes(folder: Path) -> int:
    """What the file system of a folder, or of the nearest one above it that exists, has left."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
