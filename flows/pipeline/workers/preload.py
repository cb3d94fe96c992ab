"""Preload script of Dask for worker processes of this machine."""

import signal

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes of a command: only the run handles it and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
