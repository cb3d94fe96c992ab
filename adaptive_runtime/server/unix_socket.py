"""The Unix socket of a service: for its owner alone, since the file's permissions guard it. A dead socket is replaced."""

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError

MODE = 0o600
LOCKED_S = 5.0
CHECK_S = 0.05
NEXT_STEP = "choose another path with --socket"


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at this path until the end of the block. AdaptiveError: it cannot be created."""
    where = f"--socket '{path}'"
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            with _locked(path.parent, where):
                _remove_stale(path, where)
                listener.bind(str(path))
                path.chmod(MODE)  # nobody can connect before it listens
                listener.listen()
                own = path.lstat()
        except OSError as error:
            got = f"cannot be made ({error.strerror or error})"  # a path that is too long has no number
            raise AdaptiveError(where, got, next_step=NEXT_STEP) from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                found = path.lstat()
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    path.unlink()


@contextmanager
def _locked(folder: Path, where: str) -> Iterator[None]:
    """Lock the folder, so that services that start together check their files one after the other."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end_s = time.monotonic() + LOCKED_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > end_s:
                    raise AdaptiveError(where, "another program locks its folder", next_step=NEXT_STEP) from error
                time.sleep(CHECK_S)
        yield
    finally:
        os.close(handle)


def _remove_stale(path: Path, where: str) -> None:
    """Remove a dead socket. AdaptiveError: the path is in use. OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise AdaptiveError(where, "exists, and is no socket", next_step=NEXT_STEP)
    if found.st_uid != os.geteuid():
        raise AdaptiveError(where, f"is a socket of user {found.st_uid}", next_step=NEXT_STEP)
    with socket.socket(socket.AF_UNIX) as other:
        other.setblocking(False)  # a full connection queue counts as alive
        if other.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()
            return
    raise AdaptiveError(where, "another program answers there", next_step=f"end it, or {NEXT_STEP}")
