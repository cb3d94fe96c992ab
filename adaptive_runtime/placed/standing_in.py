"""A stand-in at home beside a run over several devices: the first answer counts."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class StandIns:
    """Runs stand-ins in threads of its own, which wait where there is nothing to do. Several threads may call it. Close it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="stand-in")

    def first(self, away: Future[Any], stand_in: Callable[[], Answer]) -> Answer | None:
        """The answer of a stand-in, or None: that over devices came first, and the stand-in runs to its end for nothing.

        away: the answer over devices, once it is there. What the stand-in raises, where it has ended first.
        """
        own: Future[Any] = self._threads.submit(stand_in)
        wait((own, away), return_when=FIRST_COMPLETED)
        if away.done() and not own.done():
            return None
        found: Answer = own.result()
        return found

    def close(self) -> None:
        """Wait for the stand-ins that run."""
        self._threads.shutdown()
