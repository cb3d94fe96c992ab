"""Stores by which nodes and ranks find each other. Unlike torch's own, they listen on one address, not on all interfaces."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed

from tasks.training.finetune.meeting.addresses import MeetingPlace


def listening(host: str, port: int, timeout: timedelta) -> distributed.TCPStore:
    """A store that listens on an address of this machine while it is referenced. OSError: the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    return distributed.TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def of_ranks(host: str, port: int, rank: int, timeout: timedelta) -> distributed.TCPStore:
    """The store of the ranks of several nodes; rank 0 hosts it."""
    if rank == 0:
        return listening(host, port, timeout)
    return distributed.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


@contextmanager
def hosted(place: MeetingPlace | None, timeout: timedelta) -> Iterator[None]:
    """Host the rendezvous store until the block ends, if the rendezvous is here and no other node on this machine hosts it."""
    if place is None or not place.is_here:
        yield
        return
    try:
        store = listening(place.host, place.port, timeout)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        yield
        return
    try:
        yield
    finally:
        del store
