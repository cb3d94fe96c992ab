"""The private folder of a service, with its models, log and token; and its end by SIGTERM."""

import fcntl
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

PREFIX = "autotailor-agent-"
LOCK_FILE = "lock"
"""The service holds this lock as long as it lives, however it ends."""
LEFT_S = 60.0
"""Only older folders are checked: a younger one may not be locked yet."""


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """On SIGTERM, leave the block as by an exception, with exit code 0."""
    previous = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def private_folder() -> Iterator[Path]:
    """A 0700 folder, removed when the service ends, also by SIGTERM. Folders of killed services are removed first."""
    _remove_left()
    with ended_by_signal():
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder)
            os.close(lock)


def _remove_left() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if folder.is_symlink():
            continue
        try:
            lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # another user's, or removed meanwhile
            continue
        try:
            found = os.fstat(lock)
            if found.st_uid == os.getuid() and time.time() - found.st_mtime > LEFT_S:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:  # its service lives
            continue
        finally:
            os.close(lock)


class Ended(SystemExit):
    """A signal asked a service to end. User code that ends Python raises a plain SystemExit, which is reported as a fault."""


def _exit(number: int, frame: FrameType | None) -> None:
    raise Ended(0)
