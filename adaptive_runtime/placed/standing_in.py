"""A stand-in at home beside a run over several devices, whose answer counts if it comes in time."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class StandIns:
    """Runs stand-ins in threads of its own, which wait where there is nothing to do. Several threads may call it. Close it."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="stand-in")

    def beside(self, away: Future[Any], until_s: float, stand_in: Callable[[], Answer]) -> Answer | None:
        """The answer of a stand-in, or None: that over devices is there, and the stand-in runs to its end for nothing.

        away: the answer over devices, once it is there. until_s: of `time.monotonic`; the stand-in's answer is kept until then.
        What the stand-in raises, where it has failed meanwhile.
        """
        own: Future[Any] = self._threads.submit(stand_in)
        wait((own, away), return_when=FIRST_COMPLETED)
        wait((away,), max(0.0, until_s - time.monotonic()))
        if away.done():
            return None
        found: Answer = own.result()
        return found

    def close(self) -> None:
        """Wait for the stand-ins that run."""
        self._threads.shutdown()
