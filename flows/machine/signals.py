"""Ctrl-C and SIGTERM interrupt the main thread; if a library catches the interruption, the run ends at its next step.

A second signal ends the process at once: remaining clean-up of an interrupted command would fail in many ways, and the same
command continues from any end. Processes that it started end with it.
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
"""Restores the cursor, which progress bars hide."""
_received: list[type[KeyboardInterrupt]] = []


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a command like Ctrl-C."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    if _received:
        _end_at_once(number, frame)
    kind = Terminated if number == signal.SIGTERM else KeyboardInterrupt
    _received.append(kind)
    raise kind


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """Write one line past all buffers, since any code may be running here, and exit without clean-up."""
    shown = SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{shown}\n{AT_ONCE}\n".encode())
    os._exit(128 + number)


def end_at_once_from_now() -> None:
    """Let further signals end the process at once, even during Python's shutdown."""
    for number in SIGNALS:
        signal.signal(number, _end_at_once)


@contextmanager
def interruptible() -> Iterator[None]:
    """While inside, Ctrl-C raises KeyboardInterrupt and SIGTERM Terminated; only in the main thread, which alone gets signals.

    asyncio keeps a handler that is not Python's own. Otherwise a call of Prefect's client takes Ctrl-C for itself: it cancels
    the request, a library catches the cancellation, and the run continues.
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
            raise _received[0] from error  # the cause of the interrupted call's error
        raise
    finally:
        _received.clear()


@contextmanager
def interruptible_again() -> Iterator[None]:
    """Inside a Prefect flow of an interruptible command, keep the command's handler of SIGTERM; elsewhere no effect.

    During a flow, Prefect installs its own handler, and its exception is lost if a library catches it.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _interrupt:
        with _handled((signal.SIGTERM,)):
            yield
    else:
        yield


@contextmanager
def _handled(numbers: Sequence[int]) -> Iterator[None]:
    """Let signals interrupt inside the block, then restore their handlers."""
    previous = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def is_interrupted() -> bool:
    """Whether Ctrl-C or SIGTERM came, even if some library caught the interruption."""
    return bool(_received)
