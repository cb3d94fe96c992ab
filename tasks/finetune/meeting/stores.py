"""Stores by which nodes and ranks find each other. torch's own listen on all interfaces of a machine, these at one address."""

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from torch import distributed

from tasks.finetune.meeting.addresses import MeetingPlace


def listening(host: str, port: int, timeout: timedelta) -> distributed.TCPStore:
    """A store at an address of this machine, as long as it is referred to. OSError: the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    return distributed.TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def of_ranks(host: str, port: int, rank: int, timeout: timedelta) -> distributed.TCPStore:
    """The store of the ranks of several nodes; the first of them has it."""
    if rank == 0:
        return listening(host, port, timeout)
    return distributed.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


@contextmanager
def hosted(place: MeetingPlace | None, timeout: timedelta) -> Iterator[None]:
    """The store of the meeting place until the block ends, where the place is here and no other node here has its store."""
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
