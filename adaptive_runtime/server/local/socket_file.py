"""The file of a local socket: for its owner alone; it replaces a file whose socket is dead."""

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

MOST_PATH_BYTES = 107
"""Limit for the path of a socket, in Linux."""
MODE = 0o600
BACKLOG = 64
LOCKED_S = 5.0
CHECK_S = 0.05
NEXT_STEP = "choose another path with --socket"


@contextmanager
def listening(path: Path | None) -> Iterator[socket.socket | None]:
    """A listening socket at this path until the end of the block; None without a path. AdaptiveError: it cannot be created."""
    if path is None:
        yield None
        return
    where = f"--socket '{path}'"
    _require_possible(path, where)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            with _locked(path.parent, where):
                _remove_stale(path, where)
                listener.bind(str(path))
                path.chmod(MODE)  # nobody can connect before it listens
                listener.listen(BACKLOG)
                own = path.lstat()
        except OSError as error:
            raise AdaptiveError(where, f"cannot be made ({error.strerror})", next_step=NEXT_STEP) from error
        try:
            yield listener
        finally:
            with suppress(OSError):
                found = path.lstat()
                if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                    path.unlink()


def _require_possible(path: Path, where: str) -> None:
    """AdaptiveError: no socket can have this path here."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise AdaptiveError(where, "this system does not tell who connects", next_step="leave it out")
    size = len(os.fsencode(path))
    if size > MOST_PATH_BYTES:
        got = f"the path has {size} bytes"
        raise AdaptiveError(where, got, allowed=f"at most {MOST_PATH_BYTES}", next_step="choose a shorter one")


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
