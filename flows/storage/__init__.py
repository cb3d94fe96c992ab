"""Output folders that machines share at a URL: stages, tables, measured SubNets, locks of stages, and their addresses.

The address of an output folder is a path, or the URL of a shared place, and never contains secrets. Subfolders have the
same names on a disk and at a URL. No dump of a config has the passwords in its addresses of databases and servers.
"""

import re
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from adaptive_runtime.base.errors import HIDDEN, without_passwords
from flows.machine import cache_folder
from tasks.base.artifacts import digest_of

SIGN = "://"
CACHED = "storage"
"""Folder of the local copies, in the user's cache folder."""
READABLE = 40


class StorageProtocol(NamedTuple):
    """A way to reach a storage. package: further package that it needs. form: the form of an address."""

    package: str | None
    form: str
    users: bool = False
    """Whether a user name, which is no secret, may precede the host."""


PROTOCOLS = {
    "s3": StorageProtocol("s3fs", "s3://BUCKET/PATH"),
    "gs": StorageProtocol("gcsfs", "gs://BUCKET/PATH"),
    "gcs": StorageProtocol("gcsfs", "gcs://BUCKET/PATH"),
    "ssh": StorageProtocol("paramiko", "ssh://USER@HOST/PATH", users=True),
    "sftp": StorageProtocol("paramiko", "sftp://USER@HOST/PATH", users=True),
    "file": StorageProtocol(None, "file:///PATH"),
    "memory": StorageProtocol(None, "memory://PATH"),
}
FORMS = ", ".join(protocol.form for protocol in PROTOCOLS.values())
SECRETS = "credentials are taken from the environment or the provider's own files, and stand in no address"


def protocol_of(url: str) -> StorageProtocol:
    """The protocol of a checked address."""
    return PROTOCOLS[url.partition(SIGN)[0]]


def _checked(text: str) -> str:
    """The address in its normal form. ValueError, whose text never shows possible secrets."""
    scheme, _, rest = text.partition(SIGN)
    protocol = PROTOCOLS.get(scheme)
    if protocol is None:
        shown = scheme if re.fullmatch(r"[a-z][a-z0-9+.:-]{0,30}", scheme) else "an address"
        raise ValueError(f"got {shown}; allowed: a path, {FORMS}")
    if set(rest) & set("?#") or ("@" in rest and not protocol.users):
        raise ValueError(f"got an address with more than {protocol.form} in it, which is not shown; {SECRETS}")
    try:
        split = urlsplit(text)
        valid = _is_place(split, scheme, protocol)
    except ValueError:  # the port is not a number
        valid = False
    if not valid:
        raise ValueError(f"got an address that is no {protocol.form} and is not shown; {SECRETS}")
    return scheme + SIGN + re.sub("/{2,}", "/", rest).rstrip("/")


def _is_place(split: SplitResult, scheme: str, protocol: StorageProtocol) -> bool:
    """Whether host and path exist, and no password does. urlsplit checks the port only when it is read."""
    folders = [part for part in split.path.split("/") if part]
    if ".." in folders or split.password is not None or "@" in split.path:
        return False
    if scheme == "file":
        return not split.netloc and bool(folders)
    if protocol.users:
        return bool(split.hostname) and bool(folders) and (split.port is None or split.port > 0)
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", split.netloc) is not None


def _place(value: Any) -> Any:
    if isinstance(value, str):
        return _checked(value) if SIGN in value else Path(value)
    return value


OutputPlace = Annotated[
    Path | str, BeforeValidator(_place), Field(description=f"a folder, or what machines share: {FORMS}")
]
"""The type of `output_dir`: a path, or a checked address."""


def is_shared(place: Path | str) -> bool:
    """Whether an output folder is at a URL."""
    return isinstance(place, str)


def local_folder(place: Path | str) -> Path:
    """The output folder itself; for a URL, its local copy in the user's cache folder."""
    if isinstance(place, Path):
        return place
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", place.partition(SIGN)[2]).strip("-.")[-READABLE:]
    return cache_folder() / CACHED / f"{readable}-{digest_of(place)[:12]}"


STAGES_FOLDER = "stages"
RUNS_FOLDER = "runs"
EXPORTS_FOLDER = "exports"
"""The files of the latest run for each device, under readable names."""
TABLES_FOLDER = "luts"
"""The look-up tables of all networks and runs."""
SUBNETS_FOLDER = "subnets"
"""The store of measured SubNets."""
NIGHTS_FOLDER = "nights"
"""The record of each night."""


Address = Annotated[str, Field(min_length=1), PlainSerializer(without_passwords, return_type=str)]
"""An address that may have a password. Logs, parameters, keys and stored configs are made of dumps, which have `***` for it."""

POSTGRES = ("postgresql", "postgresql+psycopg")


def _of_postgres(address: str) -> str:
    if urlsplit(address).scheme not in POSTGRES:
        raise ValueError(f"'{without_passwords(address)}'; allowed: null, or postgresql+psycopg://USER@HOST/NAME")
    return _complete(address)


def _complete(address: str) -> str:
    if f":{HIDDEN}@" in address:
        raise ValueError(f"its password is '{HIDDEN}', as stored configs hide one; give the address anew")
    return address


LockAddress = Annotated[Address, AfterValidator(_of_postgres)]
TrackingUri = Annotated[Address, AfterValidator(_complete)]
