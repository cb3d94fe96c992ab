"""Ctrl-C and SIGTERM interrupt the main thread; where a library catches the interruption, the run ends at its next step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_received: list[type[KeyboardInterrupt]] = []


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


@contextmanager
def interruptible() -> Iterator[None]:
    """While inside, Ctrl-C raises KeyboardInterrupt and SIGTERM Terminated; in the main thread alone, which alone gets signals.

    asyncio leaves a handler alone that is not Python's own. Otherwise a call of Prefect's client takes a Ctrl-C for itself: it
    cancels the request, whose library catches the cancellation, and the run goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
        _received.append(kind)
        raise kind

    _received.clear()
    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception as error:
        if _received:
            raise _received[0] from error  # what an interrupted call ended in
        raise
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _received.clear()


def is_interrupted() -> bool:
    """Whether Ctrl-C or SIGTERM came, also where some library caught the interruption."""
    return bool(_received)
