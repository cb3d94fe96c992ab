"""Signatures of manifests: HMAC-SHA256 with a secret key that exporter and device share.

The manifest has the digests of all other files, so its signature covers them, too.
"""

import hashlib
import hmac
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError

LEAST_BYTES = 16


def read_key(file: str | Path) -> bytes:
    """The secret key, the content of a file. AdaptiveError if the file cannot be read or is too short to be secret."""
    try:
        key = Path(file).read_bytes().strip()
    except OSError as error:
        raise AdaptiveError(f"key file '{file}'", f"cannot be read ({error.strerror})") from error
    if len(key) < LEAST_BYTES:
        next_step = f"make one: openssl rand -hex 32 > {file}"
        raise AdaptiveError(
            f"key file '{file}'", f"{len(key)} bytes", allowed=f"{LEAST_BYTES} or more", next_step=next_step
        )
    return key


def signature(content: bytes, key: bytes) -> str:
    """The signature as hex digits."""
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def verify(content: bytes, stated: Path, key: bytes) -> None:
    """AdaptiveError unless the file `stated` has the signature of this content."""
    try:
        found = stated.read_text().strip()
    except (OSError, ValueError) as error:
        raise AdaptiveError(
            str(stated), "cannot be read, but a key was given", next_step="export with export.bundle_key"
        ) from error
    if not hmac.compare_digest(found.encode(), signature(content, key).encode()):
        raise AdaptiveError(
            str(stated),
            "is not the signature of the manifest by this key",
            next_step="take the exporter's key, or its bundle",
        )
