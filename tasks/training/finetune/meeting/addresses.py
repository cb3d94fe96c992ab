"""The rendezvous of several nodes, as this machine reaches it."""

import ipaddress
import socket
from typing import NamedTuple

import psutil

from tasks.base.errors import UserError

LOOPBACK = "127.0.0.1"
ALLOWED_HOST = "HOST:PORT of the first node, as the others reach it"


class MeetingPlace(NamedTuple):
    """host, port: address of the rendezvous. own: this machine's address on the route to it."""

    host: str
    port: int
    own: str

    @property
    def is_here(self) -> bool:
        """Whether this machine hosts the rendezvous."""
        return self.host == self.own


def meeting_place(rendezvous: str) -> MeetingPlace:
    """The rendezvous of a setting HOST:PORT. UserError if this machine, or no other machine, can reach it."""
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
    """Name of the network interface with this address; ranks listen only there."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address.partition("%")[0] == own for address in addresses)
    )
