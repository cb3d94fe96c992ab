"""The machine of a run: its environment, locks between runs, checks of servers, interrupts, and its own Prefect server.

Call `prepare` before Prefect, MLflow or torch are first loaded: they read their settings from the environment. The
environment has project folders that are not outputs (Prefect's home, device locks). The garbage collector pauses while
large libraries load, which makes that a fifth faster.

Locks are between processes and threads of one machine; the kernel releases them when their holder dies. Configured
servers are checked, and dead servers reported in one line, before libraries retry them for minutes.

Ctrl-C and SIGTERM interrupt the main thread; if a library catches the interruption, the run ends at its next step. A
second signal ends the process at once: remaining clean-up of an interrupted command would fail in many ways, and the
same command continues from any end. Processes that it started end with it.
"""

import fcntl
import gc
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError


def cache_folder() -> Path:
    """The user's cache folder for this project, made if missing: $XDG_CACHE_HOME/autotailor or ~/.cache/autotailor."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "autotailor"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        got, hint = f"cannot be written ({error.strerror})", "set XDG_CACHE_HOME to a folder you own"
        raise UserError(f"cache folder '{folder}'", got, next_step=hint) from error


def prefect_home() -> Path:
    """Prefect's home folder for this project."""
    return cache_folder() / "prefect"


def prepare(*, quiet: bool) -> None:
    """Set project defaults for Prefect, MLflow and torch; variables that the user has set are kept.

    quiet: Prefect logs nothing to the terminal (its server and UI still get the logs).
    """
    defaults = {
        "MPLCONFIGDIR": str(cache_folder() / "matplotlib"),
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        # on small networks, torch's threads wait longer for each other than they work; devices need cores as well
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // 2)),
    }
    if "PREFECT_HOME" not in os.environ and "PREFECT_API_URL" not in os.environ:
        defaults["PREFECT_HOME"] = str(prefect_home())
    if quiet:
        defaults["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        defaults["PREFECT_SERVER_LOGGING_LEVEL"] = "CRITICAL"
        defaults["MLFLOW_LOGGING_LEVEL"] = "WARNING"
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # effective even if it was loaded before
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Disable garbage collection inside: objects of modules persist, and would be scanned again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


POLL_SECONDS = 0.2


class Locks(Protocol):
    """Named locks between processes. A lock ends with its block, or when the process that holds it ends for any reason.

    Backends: files of this machine (`FileLocks`), sessions of PostgreSQL (`flows.storage.sharing.database`), and leases of
    objects at a URL (`flows.storage.leases`).
    """

    def held(self, name: str, say: Callable[[str], None] = print) -> AbstractContextManager[int]:
        """Hold a lock until the block ends; waits while another holder has it.

        Yields the number of the holder where the backend counts them, else 0. say: is called with the holder that it waits
        for, where the backend knows it.
        """


@dataclass(frozen=True, slots=True)
class FileLocks(Locks):
    """Locks of files in a folder, which the kernel releases when their holder dies."""

    folder: Path

    @contextmanager
    def held(self, name: str, say: Callable[[str], None] = print) -> Iterator[int]:
        """Hold a lock until the block ends; waits while another process or thread has it."""
        from filelock import FileLock  # on demand: few commands lock

        with FileLock(
            self.folder / f"{digest_of(name)}.lock", mode=0o600, thread_local=False, poll_interval=POLL_SECONDS
        ):
            yield 0


def in_turn(what: str) -> AbstractContextManager[int]:
    """Exclusive use of a resource on this machine; waits for its turn.

    what: name of the resource: a device's address, one name for all devices that run on this machine, a database.
    """
    folder = cache_folder() / "locks"
    folder.mkdir(exist_ok=True, mode=0o700)
    return FileLocks(folder).held(what)


@contextmanager
def only_run(output: Path, *, shared: bool = False) -> Iterator[None]:
    """Exclusive use of an output folder, or use together with other `shared` runs.

    The kernel's own lock has both modes on the folder's file; `filelock` has only the exclusive one.
    UserError: another run has exclusive use, others share it and this one does not, or it cannot be written.
    """
    where, other = f"output folder '{output}'", "choose another with output_dir=PATH"
    with ExitStack() as stack:
        try:
            output.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(output / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(where, "is in use by another run", next_step=f"wait for it or {other}") from None
        except OSError as error:
            raise UserError(where, f"cannot be written ({error.strerror})", next_step=other) from error
        yield


WAIT_SECONDS = 10.0
PORTS = {"http": 80, "https": 443}


def refuse_dead(where: str, url: str, next_step: str) -> None:
    """UserError if nobody listens at an http(s) address. Nothing is checked behind a proxy."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or getproxies():
        return
    try:
        address = parts.hostname or "", parts.port or PORTS[parts.scheme]
        socket.create_connection(address, timeout=WAIT_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(where, f"'{url}' does not answer ({reason})", next_step=next_step) from error


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
