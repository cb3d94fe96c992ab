"""Atomic writing of files."""

import json
import os
from pathlib import Path
from typing import Any

from adaptive_runtime.base.files import json_of


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: temporary neighbour, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)  # a partial file would keep a full disk full
        if error.filename is None:  # a write does not name its file
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def json_bytes(value: Any) -> bytes:
    """The stored form of a JSON value."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, json_bytes(value))


def read_json(path: Path) -> Any:
    """Read JSON."""
    return json_of(path.read_text(encoding="utf-8"))
