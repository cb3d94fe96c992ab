"""Devices of a registry, enrolled by tokens that can be used once, and the bundles that they fetch.

Files of bundles are requested by their sha256, so that no name from the network touches a path.
"""

import hashlib
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, update

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, SIGNATURE_FILE, OpenBundle
from adaptive_runtime.fleet import EnrolAsked, Enrolled
from tasks.base.errors import UserError
from tasks.operations.fleet.registry import Registry, bundles, devices, enrolments, one_at_a_time

DIGEST = re.compile(r"[0-9a-f]{64}")


class BundleStore:
    """The folder with the files of all bundles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, registry: Registry, bundle: Path, name: str, key_file: Path | None = None) -> str:
        """Add a bundle; its digest. AdaptiveError: it is damaged. UserError: no signature by the key, or the disk is full.

        Files are copied before the database is written to, so nobody waits for them. A bundle without a signature is accepted,
        too; devices that have a key refuse it.
        """
        opened = OpenBundle.open(bundle, key_file)
        opened.verify_all()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for file, facts in opened.manifest.files.items():
                self._put(bundle / file, facts.sha256)
            self._put(bundle / BUNDLE_FILE, opened.digest)
        except OSError as error:
            raise UserError(f"folder '{self.folder}'", f"cannot be written ({error.strerror})") from error
        signed = bundle / SIGNATURE_FILE
        stated = signed.read_text(encoding="utf-8").strip() if signed.exists() else None
        if stated is not None and not DIGEST.fullmatch(stated):
            raise UserError(str(signed), "is no signature", next_step="sign the bundle again, or remove the file")
        of_bundle = bundles.c.digest == opened.digest
        with registry.writing() as connection:
            one_at_a_time(connection)
            if connection.execute(select(bundles.c.digest).where(of_bundle)).first() is None:
                row = {"digest": opened.digest, "name": name, "signature": stated, "added_s": time.time()}
                connection.execute(insert(bundles).values(row))
            elif stated is not None:
                connection.execute(update(bundles).where(of_bundle).values(signature=stated))
        return opened.digest

    def path(self, digest: str) -> Path | None:
        """The file with this sha256; None: it does not exist, or the digest is malformed."""
        if not DIGEST.fullmatch(digest):
            return None
        file = self.folder / digest
        return file if file.is_file() else None

    def _put(self, source: Path, digest: str) -> None:
        """Copy a file and check its digest on the way."""
        target = self.folder / digest
        if target.exists():
            return
        partial = target.with_name(f".{digest}.{os.getpid()}.partial")
        try:
            shutil.copyfile(source, partial)
            if sha256_of(partial) != digest:
                raise UserError(str(source), "changed while it was read", next_step="add the bundle again")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)


def signature_of(connection: Connection, digest: str) -> str | None:
    """The signature of a bundle's manifest; None if it has none."""
    return connection.execute(select(bundles.c.signature).where(bundles.c.digest == digest)).scalar_one_or_none()


def bundle_named(connection: Connection, word: str) -> str:
    """The digest that begins with a word. UserError: no digest does, or several do."""
    known = connection.execute(select(bundles.c.digest)).scalars().all()
    found = [digest for digest in known if word and digest.startswith(word)]
    if len(found) != 1:
        got = f"'{word}' is {'no bundle here' if not found else 'the begin of several bundles'}"
        next_step = "add it: autotailor fleet add FOLDER" if not found else "write more of its digest"
        raise UserError("fleet rollout", got, next_step=next_step)
    return found[0]


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
    described = asked.model_dump(include={"name", "kind", "fingerprint"})
    row = {"id": device, "token_hash": hashed(own), **described, "owner": used, "sequence": 0}
    connection.execute(insert(devices).values(row | {"enrolled_s": now_s, "seen_s": now_s}))
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
    return [DeviceRow._make(row) for row in rows]


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
