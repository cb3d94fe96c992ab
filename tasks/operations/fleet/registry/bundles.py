"""Bundles that devices fetch: files by their sha256, so that no name from the network touches a path."""

import os
import re
import shutil
import time
from pathlib import Path

from sqlalchemy import Connection, insert, select, update

from adaptive_runtime.base.files import sha256_of
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, SIGNATURE_FILE, OpenBundle
from tasks.base.errors import UserError
from tasks.operations.fleet.registry.database import Registry, one_at_a_time
from tasks.operations.fleet.registry.tables import bundles

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
        with registry.writing() as connection:
            one_at_a_time(connection)
            _put_row(connection, opened.digest, name, stated)
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


def _put_row(connection: Connection, digest: str, name: str, signature: str | None) -> None:
    """Insert the bundle; if it exists, update its signature when one is given."""
    of_bundle = bundles.c.digest == digest
    if connection.execute(select(bundles.c.digest).where(of_bundle)).first() is None:
        row = {"digest": digest, "name": name, "signature": signature, "added_s": time.time()}
        connection.execute(insert(bundles).values(row))
    elif signature is not None:
        connection.execute(update(bundles).where(of_bundle).values(signature=signature))


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
