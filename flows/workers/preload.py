"""What Dask runs first in a worker process of this machine."""

import signal

from distributed import Worker


def dask_setup(worker: Worker) -> None:
    """Ctrl-C, which a terminal sends to all processes of a command, is for the run alone: it ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
