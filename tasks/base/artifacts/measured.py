"""Measurements of SubNets: lines in a stage's own folder, and a store that stages and runs share.

A stage resumes from its own lines; its folder holds every measurement of its result. Each line is also a record of the store. A
record's key holds all conditions of the measurement. A stage copies the store's records of a SubNet instead of measuring it.
"""

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.base.artifacts.digests import digest_of
from tasks.base.artifacts.files import write_json
from tasks.base.artifacts.folders import mend_lines
from tasks.base.artifacts.lines import append_line, append_lines, read_lines
from tasks.base.progress import Progress

KEY_FILE = "key.json"
RECORDS_FILE = "subnets.jsonl"

_OPENING = threading.Lock()  # devices are processed in parallel


@dataclass(frozen=True, slots=True)
class SubNetLines:
    """Measured SubNets. own: the stage's file of lines, with the digest as `name`. shared: the file of the store's records.

    anew: the stage measures every SubNet itself and copies no records.
    """

    own: Path
    name: Literal["key", "digest"]
    shared: Path | None = None
    anew: bool = False

    def read(self, digests: Collection[str]) -> list[Any]:
        """The own lines, as JSON. For SubNets of `digests` without an own line, the store's lines are copied first."""
        lines = read_lines(self.own)
        if self.shared is None or self.anew:
            return lines
        missing = set(digests) - {line[self.name] for line in lines}
        taken = (
            [record["measured"] for record in read_lines(self.shared) if record["digest"] in missing] if missing else []
        )
        append_lines(self.own, taken)
        return [*lines, *taken]

    def append(self, line: Mapping[str, Any], *, shared: bool = True) -> None:
        """Append a line to the own file and, with `shared`, to the store."""
        append_line(self.own, line)
        if self.shared is not None and shared:
            append_line(self.shared, {"digest": line[self.name], "measured": line})


@dataclass(frozen=True, slots=True)
class SubNetStore:
    """Records of measured SubNets, one folder per key. folder: None shares nothing.

    code, data: digests of the measuring code and of the images, parts of every key.
    """

    folder: Path | None = None
    code: str = ""
    data: str = ""

    def open(self, key: Mapping[str, Any], progress: Progress) -> Path | None:
        """The file of a key's records. Damaged lines are quarantined. key: the conditions of a measurement, as JSON."""
        if self.folder is None:
            return None
        whole = {**key, "code": self.code, "data": self.data}
        folder = self.folder / digest_of(whole)
        with _OPENING:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / KEY_FILE).exists():
                write_json(folder / KEY_FILE, whole)
            if said := mend_lines(folder / RECORDS_FILE, folder):
                progress.say(f"measured SubNets: {said}")
        return folder / RECORDS_FILE


NO_STORE = SubNetStore()
