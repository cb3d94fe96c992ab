"""The lock on the device: one client at a time, for a limited time that the client renews."""

import hmac
import time
from collections.abc import Callable


class LeaseError(Exception):
    """The device is leased by another client (`status` 423), or the caller holds no lease (409). One line."""

    def __init__(self, line: str, status: int) -> None:
        super().__init__(line)
        self.status = status


class Leases:
    """At most one lease at a time; it expires by itself."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._holder: str | None = None
        self._ttl_s = 0.0
        self._expires_at = 0.0

    @property
    def remaining_s(self) -> float:
        """Seconds until the lease expires by itself."""
        return max(0.0, self._expires_at - self._clock()) if self._holder is not None else 0.0

    def acquire(self, lease: str, ttl_s: float) -> bool:
        """Take or renew the lease; return whether it is new. LeaseError while another client holds it."""
        remaining_s = self.remaining_s
        if remaining_s > 0 and not self._holds(lease):
            raise LeaseError(f"the device is leased by another client; free in at most {remaining_s:.1f} s", 423)
        self._holder = lease
        self._ttl_s = ttl_s
        self._expires_at = self._clock() + ttl_s
        return remaining_s <= 0

    def renew(self, lease: str) -> float:
        """Restart the lease's time and return it [s]. LeaseError unless the lease is the holder's."""
        if self.remaining_s <= 0 or not self._holds(lease):
            raise LeaseError("no valid lease: it was never granted or has expired; ask for a new one", 409)
        self._expires_at = self._clock() + self._ttl_s
        return self._ttl_s

    def release(self, lease: str) -> None:
        """Free the device; LeaseError when the lease is not the holder's."""
        self.renew(lease)
        self._holder = None

    def _holds(self, lease: str) -> bool:
        return self._holder is not None and hmac.compare_digest(self._holder.encode(), lease.encode())
