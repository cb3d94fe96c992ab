"""Files: atomic writing, digests of their content, and messages that are written to and read from JSON files."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from profiling_agents.messages import Message, one_line


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


class FileMessage(Message):
    """A message that is a file.

    WHERE: name in errors for a text whose file is unknown. NEXT_STEP: advice if a text is no such message. READ_VERSION: the
    latest readable version; None: the fields decide. EARLIER_VERSIONS: versions that a validator of the message converts.
    CONTENT: the subject of the manifest, for errors. INDENT: of the text; None: it is one line.
    """

    WHERE: ClassVar[str]
    NEXT_STEP: ClassVar[str]
    READ_VERSION: ClassVar[int | None] = None
    EARLIER_VERSIONS: ClassVar[frozenset[int]] = frozenset()
    CONTENT: ClassVar[str]
    INDENT: ClassVar[int | None] = 1

    def to_json(self) -> str:
        """The file's text."""
        return self.model_dump_json(indent=self.INDENT) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "") -> Self:
        """Parse a file's text. AdaptiveError in one line if it is no such message or of another version. where: of the text."""
        where = where or cls.WHERE
        if cls.READ_VERSION is not None:
            cls._check_version(cls.READ_VERSION, text, where)
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise AdaptiveError(where, one_line(error), next_step=cls.NEXT_STEP) from error

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """Read a file. AdaptiveError in one line if it is unreadable, no such message, or of another version."""
        return cls.from_json(read_bytes(file, cls.NEXT_STEP), str(file))

    @classmethod
    def _check_version(cls, version: int, text: str | bytes, where: str) -> None:
        try:
            content = json_of(text)
        except ValueError as error:  # includes decoding errors
            raise AdaptiveError(where, f"is no JSON ({error})", next_step=cls.NEXT_STEP) from error
        if not isinstance(content, dict):
            raise AdaptiveError(where, f"is no manifest of {cls.CONTENT}", next_step=cls.NEXT_STEP)
        found = content.get("version")
        if isinstance(found, int) and found > version:
            got = f"has version {found}, of a later autotailor"
            raise AdaptiveError(where, got, allowed=str(version), next_step="update autotailor here")
        if found != version and found not in cls.EARLIER_VERSIONS:
            got = f"has {'no version' if found is None else f'version {found}'}"
            raise AdaptiveError(where, got, allowed=str(version), next_step=cls.NEXT_STEP)


def read_bytes(file: Path, again: str) -> bytes:
    """The content of a file. AdaptiveError in one line if it cannot be read. again: the advice in the error."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise AdaptiveError(str(file), f"cannot be read ({error.strerror})", next_step=again) from error
