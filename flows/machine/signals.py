"""Ctrl-C and SIGTERM interrupt the main thread; where a library catches the interruption, the run ends at its next step."""

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_received: list[type[KeyboardInterrupt]] = []


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    _received.append(kind)
    raise kind


@contextmanager
def interruptible() -> Iterator[None]:
    """While inside, Ctrl-C raises KeyboardInterrupt and SIGTERM Terminated; in the main thread alone, which alone gets signals.

    asyncio leaves a handler alone that is not Python's own. Otherwise a call of Prefect's client takes a Ctrl-C for itself: it
    cancels the request, whose library catches the cancellation, and the run goes on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    _received.clear()
    try:
        with _handled(SIGNALS):
            yield
    except Exception as error:
        if _received:
            raise _received[0] from error  # what an interrupted call ended in
        raise
    finally:
        _received.clear()


@contextmanager
def interruptible_again() -> Iterator[None]:
    """Inside a Prefect flow of an interruptible command, SIGTERM is what it is around the flow; elsewhere nothing changes.

    For the time of a flow, Prefect has a handler of its own, and its exception is lost where a library catches it.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _interrupt:
        with _handled((signal.SIGTERM,)):
            yield
    else:
        yield


@contextmanager
def _handled(numbers: Sequence[int]) -> Iterator[None]:
    """Signals interrupt; afterwards they do what they did."""
    previous = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def is_interrupted() -> bool:
    """Whether Ctrl-C or SIGTERM came, also where some library caught the interruption."""
    return bool(_received)
