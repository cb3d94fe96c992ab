"""Uploaded models: files in the agent's private folder, named by the digest that the agent computes itself."""

import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.lines import NO_SPACE
from profiling_agents.messages import ModelStored
from profiling_agents.network.guard import RequestRefused

DISK_FULL = 507


@dataclass(slots=True)
class _StoredModel:
    size: int
    holders: int = 0


class ModelFiles:
    """At most `max_bytes` of models. Models that queued jobs need stay; of the others, the least recently used goes first."""

    def __init__(self, folder: Path, max_bytes: int, user: int | None = None) -> None:
        """user: owner of the files, if that is not the user of this process."""
        self._folder = folder
        self._user = user
        self._max_bytes = max_bytes
        self._files: dict[str, _StoredModel] = {}
        self._bytes = 0

    async def receive(self, chunks: AsyncIterator[bytes]) -> ModelStored:
        """Stream chunks to a file and name it by content; RequestRefused when it does not fit.

        The size of one upload is capped by the caller.
        """
        digest = hashlib.sha256()
        size = 0
        temporary: Path | None = None
        try:
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as stream:
                temporary = Path(stream.name)
                if self._user is not None:  # by the open file, not its name: that user may put a link in its place
                    os.fchown(stream.fileno(), self._user, self._user)
                async for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    stream.write(chunk)
                stream.flush()
            self._make_room(size, digest.hexdigest())
        except BaseException as error:
            if temporary is not None:
                temporary.unlink()
            if isinstance(error, OSError) and error.errno in NO_SPACE:
                raise self._disk_full(error) from error
            raise
        name = digest.hexdigest()
        temporary.replace(self._folder / name)
        if name not in self._files:
            self._files[name] = _StoredModel(size)
            self._bytes += size
        return ModelStored(sha256=name, size=size)

    def missing(self, digests: Iterable[str]) -> tuple[str, ...]:
        """The digests that are not stored; the stored ones count as used now."""
        wanted = tuple(dict.fromkeys(digests))
        for digest in wanted:
            if digest in self._files:
                self._files[digest] = self._files.pop(digest)
        return tuple(digest for digest in wanted if digest not in self._files)

    def hold(self, digests: Iterable[str]) -> None:
        """Keep these stored files until each `hold` is undone by a `release`."""
        for digest in digests:
            self._files[digest].holders += 1

    def release(self, digests: Iterable[str]) -> None:
        """Undo one `hold`."""
        for digest in digests:
            self._files[digest].holders -= 1

    def clear(self) -> None:
        """Remove all models."""
        for digest in tuple(self._files):
            self._remove(digest)

    def _make_room(self, size: int, digest: str) -> None:
        """Remove the oldest files that nobody holds until `size` more bytes fit."""
        if digest in self._files:
            return
        for old in self._free():
            if self._bytes + size <= self._max_bytes:
                return
            self._remove(old)
        if self._bytes + size > self._max_bytes:
            line = f"the model store is full: queued jobs hold {self._bytes} of {self._max_bytes} bytes"
            raise RequestRefused(line, 429)  # finished jobs will make room

    def _disk_full(self, error: OSError) -> RequestRefused:
        """Remove all models that no job holds. Another attempt may succeed if removed or held models make room."""
        free = self._free()
        for digest in free:
            self._remove(digest)
        line = f"the disk of the device is full ({error.strerror}); free some space in its temporary folder"
        return RequestRefused(line, 429 if free or self._files else DISK_FULL)

    def _free(self) -> tuple[str, ...]:
        return tuple(digest for digest, stored in self._files.items() if not stored.holders)

    def _remove(self, digest: str) -> None:
        self._bytes -= self._files.pop(digest).size
        (self._folder / digest).unlink(missing_ok=True)
