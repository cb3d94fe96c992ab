"""Uploaded models: files in the agent's private folder, named by the digest that it computes itself."""

import hashlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from profiling_agents.messages import ModelStored


class ModelFiles:
    """At most `max_bytes` of models; the ones unused for longest go first."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}

    async def receive(self, chunks: AsyncIterator[bytes]) -> ModelStored:
        """Stream chunks to a file and name it by content. The size of one upload is capped by the caller."""
        digest = hashlib.sha256()
        size = 0
        with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as stream:
            temporary = Path(stream.name)
            try:
                async for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    stream.write(chunk)
            except BaseException:
                temporary.unlink()
                raise
        name = digest.hexdigest()
        temporary.replace(self._folder / name)
        self._sizes.pop(name, None)
        self._sizes[name] = size
        self._evict()
        return ModelStored(sha256=name, size=size)

    def missing(self, digests: tuple[str, ...]) -> tuple[str, ...]:
        """Which of the digests are not stored; the others count as used now."""
        for digest in digests:
            if digest in self._sizes:
                self._sizes[digest] = self._sizes.pop(digest)
        return tuple(digest for digest in dict.fromkeys(digests) if digest not in self._sizes)

    def clear(self) -> None:
        """Remove all models."""
        while self._sizes:
            self._remove(next(iter(self._sizes)))

    def _evict(self) -> None:
        while len(self._sizes) > 1 and sum(self._sizes.values()) > self._max_bytes:
            self._remove(next(iter(self._sizes)))

    def _remove(self, digest: str) -> None:
        del self._sizes[digest]
        (self._folder / digest).unlink(missing_ok=True)
