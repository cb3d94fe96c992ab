"""The locks of a run in its output folder, and those of a run that has its folder alone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

from flows.machine.locks import in_turn


class StageElsewhere(Exception):
    """Another worker is at a stage, which is not this one's to work then."""

    def __init__(self, stage: str, holder: str) -> None:
        super().__init__(f"{stage}: {holder} is at it")
        self.stage, self.holder = stage, holder


class RunLocks(Protocol):
    """What a run locks while it works. A lock ends with its block, and with the process that holds it, however that ends."""

    @property
    def place(self) -> str:
        """A name of the output folder that no other folder has."""

    @property
    def have_others(self) -> bool:
        """Whether other workers may be in the folder."""

    @property
    def is_lost(self) -> bool:
        """Whether locks may be others' by now: whatever is being worked stops at its next step."""

    def check(self) -> None:
        """Ask whether all locks are still held. UserError: they are not, or it cannot be said."""

    def stage(self, title: str, key: str) -> AbstractContextManager[None]:
        """A stage under a key, which nobody else works until the block ends. StageElsewhere: another worker is at it."""

    def holder(self, title: str, key: str) -> str | None:
        """The worker that is at a stage under a key; None: nobody else is."""

    def turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of something that others use, too, on any machine; waits for its turn."""

    def own_turn(self, what: str) -> AbstractContextManager[None]:
        """Exclusive use of something of this output folder; waits for its turn."""

    def others(self, run: str) -> int:
        """How many other workers are in a run (its key)."""


class FolderLocks:
    """Of a run that has its output folder alone, and shares devices with other runs of this machine."""

    have_others = False
    is_lost = False

    def __init__(self, place: str) -> None:
        self.place = place

    def check(self) -> None:
        """The kernel holds the lock of the folder."""

    @contextmanager
    def stage(self, title: str, key: str) -> Iterator[None]:
        """This run's, as every stage."""
        yield

    def holder(self, title: str, key: str) -> str | None:
        """Nobody else."""
        return None

    def turn(self, what: str) -> AbstractContextManager[None]:
        """Among the runs of this machine."""
        return in_turn(what)

    def own_turn(self, what: str) -> AbstractContextManager[None]:
        """There are no others."""
        return nullcontext()

    def others(self, run: str) -> int:
        """None."""
        return 0
