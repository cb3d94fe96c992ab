"""ncnn's param files (text): read by strict rules and written anew with our own names instead of foreign ones.

A line: layer type, layer name, number of inputs, number of outputs, their blobs, parameters (`0=16`, `-23303=2,1,1`; a
formula of sizes: `6="1,//(96,0n)"`).
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiling_agents.backends.base import ModelError
from profiling_agents.backends.own_names import OwnNames

COUNT = re.compile(rb"[0-9]{1,9}")
LAYER_TYPE = re.compile(rb"[A-Za-z0-9_.:]{1,255}")
PARAMETER = re.compile(rb'-?[0-9]{1,9}=([A-Za-z0-9_.,+\-]*|"[A-Za-z0-9_.,+\-*/()]*")')
COUNTS = 2  # numbers of layers and blobs, in the second line
BEFORE_BLOBS = 4  # words


def with_own_names(param: bytes, names: OwnNames) -> bytes:
    """The file with our names for layers and blobs; `names` keeps the foreign names. ModelError for a malformed line."""
    numbered = ((number, line.split()) for number, line in enumerate(param.split(b"\n"), start=1))
    lines = [(number, words) for number, words in numbered if words]
    if len(lines) < COUNTS or [len(words) for _, words in lines[:COUNTS]] != [1, COUNTS]:
        raise ModelError("ncnn cannot read the param file: its first two lines are not a number and two counts")
    header = [b" ".join(_counts(words, number)) for number, words in lines[:COUNTS]]
    return b"\n".join([*header, *(_layer(words, number, names) for number, words in lines[COUNTS:]), b""])


@contextmanager
def renamed_file(param: Path, names: OwnNames) -> Iterator[Path]:
    """A copy of the file with our names, in a folder beside it, until the block ends. ModelError as in `with_own_names`."""
    content = with_own_names(param.read_bytes(), names)
    folder = param.with_name(f"{param.name}.own")
    folder.mkdir(mode=0o700, exist_ok=True)  # the folder may be left over from a process that was killed
    try:
        _write(folder / param.name, content)
        yield folder / param.name
    finally:
        shutil.rmtree(folder)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ModelError(f"param file of {len(content)} bytes: {error.strerror}") from error


def _layer(words: list[bytes], number: int, names: OwnNames) -> bytes:
    """One layer's line with our names."""
    if len(words) < BEFORE_BLOBS or not LAYER_TYPE.fullmatch(words[0]):
        raise _unreadable(number, "no layer type, name and two counts")
    counts = _counts(words[2:BEFORE_BLOBS], number)
    end = BEFORE_BLOBS + sum(map(int, counts))
    if len(words) < end:
        raise _unreadable(number, f"{len(words) - BEFORE_BLOBS} blobs instead of {end - BEFORE_BLOBS}")
    if not all(map(PARAMETER.fullmatch, words[end:])):
        raise _unreadable(number, "a parameter that is not NUMBER=VALUES")
    try:
        layer = names.own("layer", words[1].decode())
        blobs = [names.own("blob", word.decode()) for word in words[BEFORE_BLOBS:end]]
    except UnicodeDecodeError as error:
        raise _unreadable(number, "a name that is not UTF-8") from error
    return b" ".join([words[0], layer.encode(), *counts, *(blob.encode() for blob in blobs), *words[end:]])


def _counts(words: list[bytes], number: int) -> list[bytes]:
    if not all(map(COUNT.fullmatch, words)):
        raise _unreadable(number, "a count that is no number")
    return words


def _unreadable(number: int, what: str) -> ModelError:
    return ModelError(f"ncnn cannot read the param file: line {number} has {what}")
