"""Names, addresses and credentials of devices that run segments of a SubNet."""

import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field

from adaptive_runtime.base.errors import AdaptiveError

COORDINATOR = "coordinator"
"""The device that has the request, and all segments."""
EARLIER_COORDINATOR = "home"
"""Its name in files of 0.17 and earlier versions; no other device may have it either."""
DeviceName = Annotated[str, Field(min_length=1, max_length=64)]
SCHEMES = ("tcp", "tls")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """`tcp://HOST:PORT` or `tls://HOST:PORT`, as `autotailor agent --serve-segments` prints it, and the device's token.

    ca_file: certificate (PEM) that the device is checked against; None: those of the system. peer_url: the address by which
    other devices reach it; None: the same.
    """

    url: str
    token: str = field(repr=False)
    ca_file: Path | None = None
    peer_url: str | None = None

    def check(self) -> None:
        """AdaptiveError: the address cannot be used."""
        self.parts  # noqa: B018 - made to say what is wrong with it
        if self.peer_url is not None:
            replace(self, url=self.peer_url, peer_url=None).check()

    @property
    def parts(self) -> tuple[str, int, ssl.SSLContext | None]:
        """Host, port and TLS. AdaptiveError: an invalid address or certificate."""
        allowed = "tcp://HOST:PORT, tls://HOST:PORT"
        try:
            split = urlsplit(self.url)
            host, port = split.hostname, split.port
        except ValueError as error:
            raise AdaptiveError("address of a device", f"'{self.url}' ({error})", allowed=allowed) from error
        if split.scheme not in SCHEMES or not host or port is None:
            raise AdaptiveError("address of a device", f"'{self.url}'", allowed=allowed)
        if split.scheme == "tcp":
            return host, port, None
        try:
            return host, port, ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise AdaptiveError(f"certificate '{self.ca_file}'", f"cannot be used ({error})") from error
