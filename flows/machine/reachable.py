"""Checks that configured servers answer, and reports dead ones in one line, before libraries retry them for minutes."""

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from tasks.base.errors import UserError

WAIT_SECONDS = 10.0
PORTS = {"http": 80, "https": 443}


def refuse_dead(where: str, url: str, next_step: str) -> None:
    """UserError if nobody listens at an http(s) address. Nothing is checked behind a proxy."""
    parts = urlsplit(url)
    if parts.scheme not in PORTS or getproxies():
        return
    try:
        address = parts.hostname or "", parts.port or PORTS[parts.scheme]
        socket.create_connection(address, timeout=WAIT_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(where, f"'{url}' does not answer ({reason})", next_step=next_step) from error
