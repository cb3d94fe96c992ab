"""The history of a training: one JSON line per step; ranks append to it, and the launcher follows it."""

import os
from pathlib import Path
from typing import Any

from tasks.base.artifacts import line_of, read_lines, whole_lines, write_bytes


def rewind(history: Path, step: int) -> None:
    """Remove the lines that a killed run wrote after its last checkpoint."""
    kept = [line_of(line) for line in read_lines(history) if line["step"] <= step]
    write_bytes(history, "".join(kept).encode())


class Tail:
    """New steps of a history that restarted ranks may rewind meanwhile."""

    def __init__(self, path: Path, done: int) -> None:
        self._path = path
        self._file = -1
        self._offset = 0
        self._done = done

    def new(self) -> list[dict[str, Any]]:
        """Lines of new steps: those after `done` that no earlier call returned."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as stream:
            file = os.fstat(stream.fileno()).st_ino
            if file != self._file:  # rewinding writes another file
                self._file, self._offset = file, 0
            stream.seek(self._offset)
            whole = stream.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        lines = whole_lines(whole)
        found = [line for line in lines if line["step"] > self._done]
        self._done = max([self._done, *(line["step"] for line in found)])
        return found
