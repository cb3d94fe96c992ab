"""What a backup has: for each part its files with their digests, as a file whose name has its own digest."""

from pathlib import PurePosixPath
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from tasks.base.schemas.stored import Record, Stored

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
PartKind = Literal["folder", "sqlite", "postgresql"]
DUMP = "dump"
"""Name of the one file of a database."""


def _inside(name: str) -> str:
    """A relative path that leads out of nothing: a manifest is input, as every file."""
    path = PurePosixPath(name)
    if path.is_absolute() or not path.parts or ".." in path.parts or path.as_posix() != name or "\0" in name:
        raise ValueError(f"'{name}' is no path inside a folder")
    return name


InnerPath = Annotated[str, AfterValidator(_inside)]


class BackedUpFile(Record):
    """A file as it was. size: bytes. mode: its permissions. mtime_ns: since 1970."""

    sha256: Sha256
    size: int = Field(ge=0)
    mode: int = Field(ge=0, le=0o777)
    mtime_ns: int


class BackupPart(Record):
    """A folder with all its files, or a database with its dump. place: where it was, for people, without a password."""

    kind: PartKind
    place: str
    files: dict[InnerPath, BackedUpFile]

    @model_validator(mode="after")
    def _a_database_has_one_file(self) -> Self:
        if self.kind != "folder" and self.files.keys() != {DUMP}:
            raise ValueError(f"a database has one file, '{DUMP}'")
        return self

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files.values())


class Manifest(Stored):
    """One backup. made_at: UTC, ISO 8601. autotailor: the version that made it."""

    STAGE: ClassVar[str] = "backup"
    KIND: ClassVar[str] = "backup"

    made_at: str
    autotailor: str
    parts: dict[str, BackupPart]

    @classmethod
    def _again(cls) -> str:
        return "make another one: autotailor backup FOLDER"
