"""A fallback on the coordinator beside a run over several devices, whose answer counts if it comes in time."""

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Answer = TypeVar("Answer")


class StandIns:
    """Runs fallbacks in its own threads, which idle otherwise. Several threads may call it. Close it after use."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(thread_name_prefix="stand-in")

    def beside(self, away: Future[Any], until_s: float, stand_in: Callable[[], Answer]) -> Answer | None:
        """The answer of a fallback; None: the answer over devices came in time, and the fallback's result is discarded.

        away: the future answer over devices. until_s: of `time.monotonic`; the fallback's answer is held back until then.
        Raises the fallback's error if it failed and `away` is not done.
        """
        own: Future[Any] = self._threads.submit(stand_in)
        wait((own, away), return_when=FIRST_COMPLETED)
        wait((away,), max(0.0, until_s - time.monotonic()))
        if away.done():
            return None
        found: Answer = own.result()
        return found

    def close(self) -> None:
        """Wait for the running fallbacks."""
        self._threads.shutdown()
