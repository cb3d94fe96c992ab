"""Locks between processes and threads of one machine; the kernel releases them when their holder dies."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.machine.environment import cache_folder
from tasks.base.artifacts import digest_of
from tasks.base.errors import UserError

POLL_SECONDS = 0.2


def _try_lock(path: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def only_run(output: Path, *, shared: bool = False) -> Iterator[None]:
    """Exclusive use of an output folder, or use together with other `shared` runs.

    UserError: another run has exclusive use, others share it and this one does not, or it cannot be written.
    """
    where = f"output folder '{output}'"
    other = "choose another with output_dir=PATH"
    try:
        output.mkdir(parents=True, exist_ok=True)
        descriptor = _try_lock(output / ".lock", fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    except OSError as error:
        raise UserError(where, f"cannot be written ({error.strerror})", next_step=other) from error
    if descriptor is None:
        raise UserError(where, "is in use by another run", next_step=f"wait for it or {other}")
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def in_turn(what: str) -> Iterator[None]:
    """Exclusive use of a resource on this machine; waits for its turn.

    what: name of the resource: a device's address, one name for all devices that run on this machine, a database.
    """
    folder = cache_folder() / "locks"
    folder.mkdir(exist_ok=True, mode=0o700)
    while (descriptor := _try_lock(folder / f"{digest_of(what)}.lock")) is None:
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)
