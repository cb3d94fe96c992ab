"""The meeting place of several nodes, as this machine reaches it."""

import ipaddress
import socket
from typing import NamedTuple

import psutil

from tasks.errors import UserError

LOOPBACK = "127.0.0.1"
ALLOWED_HOST = "HOST:PORT of the first node, as the others reach it"


class MeetingPlace(NamedTuple):
    """host, port: where nodes meet. own: this machine's address on the way there."""

    host: str
    port: int
    own: str

    @property
    def is_here(self) -> bool:
        """Whether this machine has the place."""
        return self.host == self.own


def meeting_place(rendezvous: str) -> MeetingPlace:
    """The place of a setting HOST:PORT. UserError when there is no way to it, or none for other machines."""
    name, _, port = rendezvous.rpartition(":")
    name = name.strip("[]")
    try:
        family, kind, _, _, there = socket.getaddrinfo(name, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UserError("rendezvous", f"no way to '{name}' ({error.strerror})", allowed=ALLOWED_HOST) from error
    if ipaddress.ip_address(own).is_loopback and name not in (own, "localhost"):
        raise UserError("rendezvous", f"'{name}' is {own} here, which no other machine reaches", allowed=ALLOWED_HOST)
    return MeetingPlace(str(there[0]), int(port), own)


def interface_of(own: str) -> str:
    """Name of the network interface with this address, so that ranks listen nowhere else."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address.partition("%")[0] == own for address in addresses)
    )
