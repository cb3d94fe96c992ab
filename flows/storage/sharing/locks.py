"""The locks of a run in its output folder, and their form for a run with exclusive use."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from flows.machine.locks import in_turn


class StageElsewhere(Exception):
    """Another worker is at a stage, so this worker must not work it."""

    def __init__(self, stage: str, holder: str) -> None:
        super().__init__(f"{stage}: {holder} is at it")
        self.stage, self.holder = stage, holder


class RunLocks(Protocol):
    """The locks of a run. A lock ends with its block, or when the process that holds it ends for any reason."""

    @property
    def place(self) -> str:
        """A unique name of the output folder."""

    @property
    def have_others(self) -> bool:
        """Whether other workers may be in the folder."""

    @property
    def is_lost(self) -> bool:
        """Whether other workers may hold the locks by now: all work then stops at its next step."""

    def check(self) -> None:
        """Check that all locks are still held. UserError if they are not, or this cannot be determined."""

    def stage(self, title: str, key: str) -> AbstractContextManager[None]:
        """Lock a stage under a key until the block ends. StageElsewhere: another worker is at it."""

    def holder(self, title: str, key: str) -> str | None:
        """The worker that is at a stage under a key; None if there is no other."""

    def turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of a resource among all machines; waits for its turn."""

    def own_turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of a resource of this output folder; waits for its turn."""

    def others(self, run: str) -> int:
        """The number of other workers in a run (its key)."""


class FolderLocks:
    """Locks of a run with exclusive use of its output folder; it shares devices with other runs of this machine."""

    have_others = False
    is_lost = False

    def __init__(self, place: str) -> None:
        self.place = place

    def check(self) -> None:
        """No check is needed: the kernel holds the lock of the folder."""

    @contextmanager
    def stage(self, title: str, key: str) -> Iterator[None]:
        """Every stage belongs to this run."""
        yield

    def holder(self, title: str, key: str) -> str | None:
        """None, since there are no other workers."""
        return None

    def turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of a resource among the runs of this machine."""
        return in_turn(what)

    def own_turn(self, what: str) -> AbstractContextManager[None]:
        """No lock, since there are no other workers."""
        return nullcontext()

    def others(self, run: str) -> int:
        """Zero."""
        return 0
