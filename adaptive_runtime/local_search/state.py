"""Evaluated SubNets of a search, in a file: written completely after each generation, and read when the search resumes."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.local_search.evaluation import PathScore
from profiling_agents.messages import Digest, Message

STATE_FILE = "search.json"
VERSION = 2


class EvaluatedPath(Message):
    """A SubNet by its segments; accuracy and loss are those of `PathScore`."""

    path: tuple[int, ...]
    accuracy: float = Field(ge=0, le=1)
    loss: float = Field(ge=0)

    @property
    def score(self) -> PathScore:
        """The score without the path."""
        return PathScore(self.accuracy, self.loss)


class SearchState(FileMessage):
    """A search after some generations. key: digest of bundle, settings, images and latencies; it identifies the search.

    largest: the largest SubNet. Sums over all runs: runs, alone, run_ms, alone_ms as in `RunCounts`. The state contains neither
    images nor labels.
    """

    WHERE: ClassVar[str] = STATE_FILE
    NEXT_STEP: ClassVar[str] = "remove it"
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "a search"

    version: int = VERSION
    key: Digest
    generation: int = Field(0, ge=0)
    largest: EvaluatedPath | None = None
    evaluated: tuple[EvaluatedPath, ...] = ()
    runs: int = 0
    alone: int = 0
    run_ms: float = 0.0
    alone_ms: float = 0.0

    def write(self, folder: Path) -> None:
        """Save the state in the folder of the search."""
        write_whole(folder / STATE_FILE, self.model_dump_json(indent=1))

    @classmethod
    def open(cls, folder: Path, key: str) -> "SearchState":
        """The saved state with this key; a new state if none exists, or if it belongs to another search."""
        file = folder / STATE_FILE
        if file.exists():
            try:
                found = cls.from_file(file)
            except AdaptiveError:
                return cls(key=key)
            if found.key == key:
                return found
        return cls(key=key)


def write_whole(file: Path, text: str) -> None:
    """Write a file whole or not at all. AdaptiveError: it cannot be written."""
    try:
        replace_file(file, text)
    except OSError as error:
        raise AdaptiveError(
            str(file), f"cannot be written ({error.strerror})", next_step="give another folder"
        ) from error
