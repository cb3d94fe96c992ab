"""Progress of stages, reported to any listener: a terminal bar, Prefect, or nobody."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class Bar(Protocol):
    """One bar: `advance` counts finished pieces, `note` shows a short state beside it."""

    def advance(self, count: int = 1) -> None: ...

    def note(self, text: str) -> None: ...


class Progress(Protocol):
    """Opens bars and logs metrics of the running stage."""

    def bar(self, name: str, total: int, done: int = 0) -> AbstractContextManager[Bar]: ...

    def metrics(self, values: dict[str, float], step: int) -> None: ...

    def say(self, line: str) -> None:
        """Show a line that the user should know at once."""
        ...


class _SilentBar:
    def advance(self, count: int = 1) -> None:
        """Do nothing: nobody listens."""

    def note(self, text: str) -> None:
        """Do nothing: nobody listens."""


class Silent:
    """Progress for library use and tests: nobody listens."""

    @contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        yield _SilentBar()

    def metrics(self, values: dict[str, float], step: int) -> None:
        """Do nothing: nobody listens."""

    def say(self, line: str) -> None:
        """Do nothing: nobody listens."""
