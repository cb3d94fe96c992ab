"""Checks of the network and the weights that settings name, without loading a library, in milliseconds."""

import difflib
import importlib.util
import json
import os
import re
import zipfile
from pathlib import Path

from tasks.base.errors import UserError
from tasks.evaluation.models.own_code import source_of
from tasks.evaluation.models.settings import ModelSettings

SAFETENSORS = ".safetensors"
TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
OLD_TORCH = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
MOST_BEFORE_NUMBER = 32
"""Torch files that are no zip archives begin with `OLD_TORCH`, after at most this number of bytes of pickle."""
PICKLE, LIST_BYTES = b"/data.pkl", 2**20
"""A name in the file list of torch's zip archives, and the number of bytes at the end of the file that contain the list."""
ANOTHER = "choose another with model.checkpoint=FILE"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""Largest header of a .safetensors file; the file's first `LENGTH_BYTES` bytes are the header's length."""
REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)


def check_named(settings: ModelSettings) -> None:
    """Raise UserError if a file is missing, a checkpoint has another format, or timm does not have the network.

    Errors that depend on the network itself, such as weights that do not fit, are raised when it is created.
    """
    if settings.kind == "onnx":
        assert settings.path is not None
        check_network_file(settings.path)
    elif settings.kind == "callable":
        check_source(settings.name)
    elif fault := _unknown_to_timm(settings.name):
        raise UserError("model.name", fault[0], allowed=fault[1], next_step="see timm.list_models()")
    if settings.checkpoint is not None:
        check_checkpoint(settings.checkpoint)
        _check_content(settings.checkpoint)


def check_network_file(path: Path) -> None:
    """Raise UserError if the file does not exist."""
    if not path.is_file():
        raise UserError(f"model file '{path}'", "does not exist", next_step="choose another with model.path=FILE.onnx")


def check_source(name: str) -> None:
    """Raise UserError if the file of `FILE.py:function` does not exist."""
    module = name.split(":")[0]
    if module.endswith(".py") and source_of(name) is None:
        raise UserError(
            f"model.name '{name}'", f"there is no file '{module}'", allowed="FILE.py:function, or module:function"
        )


def check_checkpoint(path: Path) -> None:
    """Raise UserError if the file does not exist."""
    if not path.is_file():
        raise UserError(f"checkpoint '{path}'", "does not exist", next_step=ANOTHER)


def is_of_torch(path: Path) -> bool:
    """Whether torch reads a file, judged by its first bytes (a zip archive, or an old pickle file) or its name."""
    with path.open("rb") as stream:
        first = stream.read(LENGTH_BYTES + 1)
    by_content = first[:2] in (b"PK", b"\x80\x02")
    return by_content or (path.suffix.lower() in TORCH_FILES and first[LENGTH_BYTES:] != b"{")


def _check_content(path: Path) -> None:
    """Raise UserError unless the file is a complete torch or safetensors file. No code in it is run."""
    try:
        of_torch = is_of_torch(path)
        is_one = _is_saved_by_torch(path) if of_torch else _has_header(path)
    except OSError as error:
        raise UserError(f"checkpoint '{path}'", f"cannot be read ({error.strerror})", next_step=ANOTHER) from error
    if not is_one:
        kind = (
            "file of torch" if of_torch else "safetensors file" if path.suffix != SAFETENSORS else ".safetensors file"
        )
        allowed = "a .safetensors file, or torch.save(model.state_dict(), 'FILE.pt'), of this network"
        raise UserError(f"checkpoint '{path}'", f"is no {kind}, or not all of one", allowed=allowed, next_step=ANOTHER)


def _is_saved_by_torch(path: Path) -> bool:
    """Whether a file is a zip archive that lists a pickle, or begins with the number of torch's older format."""
    with path.open("rb") as stream:
        if OLD_TORCH in stream.read(MOST_BEFORE_NUMBER + len(OLD_TORCH)):
            return True
        if not zipfile.is_zipfile(stream):
            return False
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - LIST_BYTES))  # the file list is at the end
        return PICKLE in stream.read()


def _has_header(path: Path) -> bool:
    """Whether a file begins with a safetensors header."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = stream.read(size) if 0 < size <= MOST_HEADER_BYTES else b""
    try:
        return len(header) == size and isinstance(json.loads(header), dict)
    except (ValueError, RecursionError):
        return False


def _unknown_to_timm(name: str) -> tuple[str, str] | None:
    """The error for a network whose name is nowhere in timm's sources, and similar names; None: timm may have it.

    Only timm itself could decide, but importing it takes seconds.
    """
    plain = name.split(".")[0]
    spec = importlib.util.find_spec("timm")
    folder = Path(spec.origin).parent / "models" if spec is not None and spec.origin is not None else None
    files = sorted(folder.glob("*.py")) if folder is not None else []
    sources = [file.read_text(encoding="utf-8") for file in files]
    word = re.compile(rf"\b{re.escape(plain)}\b")
    if ":" in name or not sources or any(plain in source and word.search(source) for source in sources):
        return None
    known = sorted({found for source in sources for found in REGISTERED.findall(source)})
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.4)
    return f"timm has no network '{name}'", f"for example {', '.join(near)}" if near else "those of timm.list_models()"
