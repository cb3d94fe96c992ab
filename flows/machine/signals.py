"""Ctrl-C and SIGTERM interrupt the main thread; where a library catches the interruption, the run ends at its next step.

A second one ends the process at once: what an interrupted command still tidies up would only fail in many ways, and the same
command goes on from any end. What it has started ends with it.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
AT_ONCE = "autotailor: interrupted again, and ended at once; the same command goes on from here"
SHOW_CURSOR = "\x1b[?25h"
"""Bars hide it."""
_received: list[type[KeyboardInterrupt]] = []


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command as Ctrl-C does."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    if _received:
        _end_at_once(number, frame)
    kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    _received.append(kind)
    raise kind


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """One line, written past all buffers, since any code may be at work here; nothing is tidied up."""
    shown = SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{shown}\n{AT_ONCE}\n".encode())
    os._exit(128 + number)


def end_at_once_from_now() -> None:
    """Let further signals end the process at once, also while Python closes it."""
    for number in SIGNALS:
        signal.signal(number, _end_at_once)


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
