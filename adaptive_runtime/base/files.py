"""Files that are written whole or not at all, and hashes of their content."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def replace_file(file: Path, content: str | bytes) -> None:
    """Replace a file as a whole: a reader sees the old or the new one, even after a power failure. OSError."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    try:
        with open(handle, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, file)
    except OSError:
        os.unlink(name)
        raise


def json_of(text: str | bytes) -> Any:
    """The value of a JSON text. ValueError if it is invalid, or nested too deep (json raises RecursionError for that)."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's content, hexadecimal. OSError if it cannot be read."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
