"""Devices of a registry: enrolment by tokens that can be used once, and the device that a token belongs to."""

import hashlib
import secrets
import time
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from adaptive_runtime.fleet import EnrolAsked, Enrolled
from tasks.base.errors import UserError
from tasks.operations.fleet.registry.tables import devices, enrolments

MOST_TOKENS = 10_000


class EnrolmentRefused(Exception):
    """The token is unknown, used, or expired; the caller does not learn which."""


class EnrolmentToken(NamedTuple):
    """token: shown once, and stored nowhere. expires_s: since 1970."""

    token: str
    expires_s: float


class DeviceRow(NamedTuple):
    """A device in lists; `assigned` and `active` are digests of bundles.

    restored: how often it sent telemetry from an older copy of its folder, the last time at `restored_s`. lut: its look-up
    table; verdict: of the latest check by its kind.
    """

    id: str
    name: str
    kind: str
    fingerprint: str
    owner: str
    enrolled_s: float
    seen_s: float
    assigned: str | None
    active: str | None
    restored: int
    restored_s: float | None
    lut: str | None
    verdict: str | None
    verdict_reason: str | None
    checked_s: float | None


def hashed(token: str) -> str:
    """The hash under which a token is stored. Tokens have 256 random bits, so a plain hash cannot be reversed by guessing."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_enrolment(connection: Connection, owner: str, *, valid_s: float, count: int = 1) -> list[EnrolmentToken]:
    """Tokens that enrol one device each. UserError: too many at once."""
    if not 1 <= count <= MOST_TOKENS:
        raise UserError("fleet enrol", f"{count} tokens", allowed=f"1 to {MOST_TOKENS}")
    made = [EnrolmentToken(secrets.token_hex(32), time.time() + valid_s) for _ in range(count)]
    rows = [{"token_hash": hashed(one.token), "owner": owner, "expires_s": one.expires_s} for one in made]
    connection.execute(insert(enrolments), rows)
    return made


def can_enrol(connection: Connection, token: str) -> bool:
    """Whether a device may enrol with this token."""
    found = connection.execute(
        select(enrolments.c.expires_s).where(enrolments.c.token_hash == hashed(token), enrolments.c.device.is_(None))
    ).scalar_one_or_none()
    return found is not None and found > time.time()


def enrol(connection: Connection, token: str, asked: EnrolAsked) -> Enrolled:
    """Enrol a new device with a token of its own. EnrolmentRefused. If two devices use one token at once, one is refused."""
    now_s, device, own = time.time(), secrets.token_hex(16), secrets.token_hex(32)
    used = connection.execute(
        update(enrolments)
        .where(enrolments.c.token_hash == hashed(token), enrolments.c.device.is_(None), enrolments.c.expires_s > now_s)
        .values(device=device)
        .returning(enrolments.c.owner)
    ).scalar_one_or_none()
    if used is None:
        raise EnrolmentRefused
    connection.execute(
        insert(devices).values(
            id=device,
            token_hash=hashed(own),
            name=asked.name,
            kind=asked.kind,
            fingerprint=asked.fingerprint,
            owner=used,
            enrolled_s=now_s,
            seen_s=now_s,
            sequence=0,
        )
    )
    return Enrolled(device=device, token=own)


def find_device(connection: Connection, token: str) -> str | None:
    """The device with this token; None if there is none."""
    return connection.execute(select(devices.c.id).where(devices.c.token_hash == hashed(token))).scalar_one_or_none()


def assigned_to(connection: Connection, device: str) -> str | None:
    """The digest of the bundle that a device should run; None: whatever it has."""
    return connection.execute(select(devices.c.assigned).where(devices.c.id == device)).scalar_one_or_none()


def list_devices(connection: Connection) -> list[DeviceRow]:
    """All devices, by kind and name."""
    columns = [devices.c[name] for name in DeviceRow._fields]
    rows = connection.execute(select(*columns).order_by(devices.c.kind, devices.c.name, devices.c.id))
    return [DeviceRow(*row) for row in rows]


def note_verdict(connection: Connection, device: str, lut: str | None, verdict: str, reason: str) -> None:
    """Store a verdict by devices of the same kind. lut: the kind's look-up table; None: the device did not describe itself."""
    values = {"verdict": verdict, "verdict_reason": reason, "checked_s": time.time()}
    if lut is not None:
        values["lut"] = lut
    connection.execute(update(devices).where(devices.c.id == device).values(values))


def remove_device(connection: Connection, device: str) -> None:
    """Remove a device; its token becomes invalid. UserError: it does not exist."""
    if connection.execute(delete(devices).where(devices.c.id == device)).rowcount == 0:
        raise UserError("fleet devices", f"'{device}' is no device", next_step="see 'autotailor fleet devices'")
