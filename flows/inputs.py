"""What the user brings, as parts of a stage's key: content where it can be hashed quickly, names never."""

import os
import sys
from pathlib import Path
from typing import Any

from flows.versions import user_code_version
from tasks.artifacts import digest_of
from tasks.data.settings import DataSettings
from tasks.models import ModelSettings


def data_key(settings: DataSettings) -> dict[str, Any]:
    """The data settings that decide the images; files count by relative name, size and time of change."""
    key = settings.model_dump(mode="json", exclude={"path", "workers"})
    return {**key, "files": _listing(settings.path)} if settings.path else key


def _listing(root: Path) -> str:
    rows = []
    for folder, folders, names in os.walk(root, followlinks=True):
        folders.sort()
        for name in sorted(names):
            file = Path(folder) / name
            status = file.stat()
            rows.append([str(file.relative_to(root)), status.st_size, status.st_mtime_ns])
    return digest_of(rows)


def model_key(settings: ModelSettings) -> dict[str, Any]:
    """The model settings; by content: the ONNX file, the checkpoint, the callable's source with what it imports beside it."""
    key = settings.model_dump(mode="json", exclude={"path", "checkpoint"})
    files = {name: digest_of(path) for name in ("path", "checkpoint") if _is_file(path := getattr(settings, name))}
    if settings.kind == "callable" and (source := _source(settings.name)):
        files["source"] = source
    return {**key, "files": files}


def _is_file(path: Path | None) -> bool:
    return path is not None and path.is_file()


def _source(name: str) -> str | None:
    """Version of the code of `module:function`; None when there is none (making the network says so in one line)."""
    sys.path.append(str(Path.cwd()))
    try:
        return user_code_version(name.split(":")[0])
    finally:
        sys.path.pop()
