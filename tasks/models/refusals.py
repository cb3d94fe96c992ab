"""What settings name that cannot be a network or its weights, found without a library, in milliseconds."""

import difflib
import importlib.util
import json
import os
import re
import zipfile
from pathlib import Path

from tasks.errors import UserError
from tasks.models.own_code import source_of
from tasks.models.settings import ModelSettings

SAFETENSORS = ".safetensors"
TORCH_FILES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
OLD_TORCH = (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
MOST_BEFORE_NUMBER = 32
"""Files of torch that are no zip archives begin with this number, behind some bytes of pickle."""
PICKLE, LIST_BYTES = b"/data.pkl", 2**20
"""In other files of torch, and the end of the file in which it stands."""
ANOTHER = "choose another with model.checkpoint=FILE"
LENGTH_BYTES = 8
MOST_HEADER_BYTES = 100_000_000
"""Of a .safetensors file: its first bytes are the length of the header, which has a limit."""
REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)


def check_named(settings: ModelSettings) -> None:
    """UserError: a file that is not there, a checkpoint that is none, or a network that timm does not have.

    What only the network itself can tell, such as weights that do not fit, is told when it is made.
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
    """UserError: there is no such file."""
    if not path.is_file():
        raise UserError(f"model file '{path}'", "does not exist", next_step="choose another with model.path=FILE.onnx")


def check_source(name: str) -> None:
    """UserError: the file of `FILE.py:function` is not there."""
    module = name.split(":")[0]
    if module.endswith(".py") and source_of(name) is None:
        raise UserError(
            f"model.name '{name}'", f"there is no file '{module}'", allowed="FILE.py:function, or module:function"
        )


def check_checkpoint(path: Path) -> None:
    """UserError: there is no such file."""
    if not path.is_file():
        raise UserError(f"checkpoint '{path}'", "does not exist", next_step=ANOTHER)


def is_of_torch(path: Path) -> bool:
    """Whether torch reads a file: by its name, or by its first bytes, of a zip archive, or of an old file of pickle."""
    with path.open("rb") as stream:
        first = stream.read(LENGTH_BYTES + 1)
    by_content = first[:2] in (b"PK", b"\x80\x02")
    return by_content or (path.suffix.lower() in TORCH_FILES and first[LENGTH_BYTES:] != b"{")


def _check_content(path: Path) -> None:
    """UserError: a file that is neither one of torch nor one of safetensors, or not all of one. No code of it is run."""
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
    """A zip archive whose list of files has a pickle, or a file that begins with the number of torch's older form."""
    with path.open("rb") as stream:
        if OLD_TORCH in stream.read(MOST_BEFORE_NUMBER + len(OLD_TORCH)):
            return True
        if not zipfile.is_zipfile(stream):
            return False
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - LIST_BYTES))  # the list stands at the end
        return PICKLE in stream.read()


def _has_header(path: Path) -> bool:
    """Whether a file begins with a header of safetensors."""
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = stream.read(size) if 0 < size <= MOST_HEADER_BYTES else b""
    try:
        return len(header) == size and isinstance(json.loads(header), dict)
    except (ValueError, RecursionError):
        return False


def _unknown_to_timm(name: str) -> tuple[str, str] | None:
    """The error for a network whose name stands nowhere in timm's sources, and names like it; None: it may have it.

    Importing timm, which alone knows for sure, takes seconds.
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
