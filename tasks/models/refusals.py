"""What settings name that cannot be a network or its weights, found without a library, in milliseconds."""

import difflib
import importlib.util
import json
import re
from pathlib import Path

from tasks.errors import UserError
from tasks.models.own_code import source_of
from tasks.models.settings import ModelSettings

SAFETENSORS = ".safetensors"
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
        _check_header(settings.checkpoint)


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
        raise UserError(f"checkpoint '{path}'", "does not exist", next_step="choose another with model.checkpoint=FILE")


def _check_header(path: Path) -> None:
    """UserError: a file that is called .safetensors and has no header of one. Files with other names are read by torch."""
    if path.suffix != SAFETENSORS:
        return
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = stream.read(size) if 0 < size <= MOST_HEADER_BYTES else b""
    try:
        is_one = len(header) == size and isinstance(json.loads(header), dict)
    except (ValueError, RecursionError):
        is_one = False
    if not is_one:
        got = "is no .safetensors file, or not all of one"
        raise UserError(f"checkpoint '{path}'", got, allowed="a .safetensors file of this network")


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
