"""Dask worker processes that evaluate SubNets: the preload script of Dask for workers of this machine.

Workers import `process` alone, and load the modules that its tasks name.
"""

import signal

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Ignore Ctrl-C, which a terminal sends to all processes of a command: only the run handles it and ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
