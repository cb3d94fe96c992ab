"""Our own names in place of the names in a foreign model file, ncnn's param files, rewritten with them, and errors of models.

Libraries write names into source text (torch.fx), into files of lines (ncnn) and into paths, and trust them. No library
of a backend sees a foreign name; results about a model carry the foreign names again.

ncnn's param files (text) are read by strict rules and written anew. A line: layer type, layer name, number of inputs,
number of outputs, their blobs, parameters (`0=16`, `-23303=2,1,1`; a formula of sizes: `6="1,//(96,0n)"`).
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from profiling_agents.messages import JobMessage, Shape

NameKind = Literal["node", "value", "dimension", "function", "layer", "blob"]
OWN = re.compile(r"(?:node|value|dimension|function|layer|blob)\d+_")
"""One of our names, alone or inside a longer name that a runtime made of it ("node7__nchwc", "node3__token_12")."""
WORD = re.compile(r"[A-Za-z0-9_.]*")
LISTED = 8


class ModelError(Exception):
    """The runtime refuses the model; the message is the reason (one line)."""


class ModelMemoryError(ModelError):
    """The model needs more memory than it may have."""


class SanitizedNames:
    """Our names and the foreign names that they replace. Equal names stay equal, different names stay different."""

    def __init__(self) -> None:
        self._own: dict[tuple[NameKind, str], str] = {}
        self._foreign: dict[str, str] = {}

    def own(self, kind: NameKind, foreign: str) -> str:
        """Our name for a foreign name; the empty name, which means "none", stays empty."""
        if not foreign:
            return ""
        if (kind, foreign) not in self._own:
            name = f"{kind}{len(self._own)}_"
            self._own[kind, foreign] = name
            self._foreign[name] = foreign
        return self._own[kind, foreign]

    def known(self, kind: NameKind) -> list[str]:
        """All foreign names of one kind."""
        return [foreign for one, foreign in self._own if one == kind]

    def restored(self, text: str) -> str:
        """The text with our names replaced by the foreign names."""
        return OWN.sub(lambda match: self._foreign.get(match[0], match[0]), text)

    def job(self, job: JobMessage, kind: NameKind, inputs: Sequence[str] | None, outputs: Sequence[str]) -> JobMessage:
        """The job with our names. ModelError if a name is not an input or output of the file.

        inputs: all inputs of the file, and the job must feed each; None: the job may feed any of `outputs`.
        """
        known = set(outputs)
        wanted = job.output_names if inputs is not None else (*job.input_names, *job.output_names)
        where = "output" if inputs is not None else kind
        for name in wanted:
            if name not in known:
                raise ModelError(f"{where} '{name}' is not in the model; it has {', '.join(sorted(known)[:LISTED])}")
        if inputs is not None and set(inputs) != set(job.input_names):
            raise ModelError(f"inputs: the job states {job.input_names}; the model has {tuple(inputs)}")
        ours = {
            "input_names": tuple(self.own(kind, name) for name in job.input_names),
            "output_names": tuple(self.own(kind, name) for name in job.output_names),
        }
        return job.model_copy(update=ours)

    @contextmanager
    def restored_errors(self) -> Iterator[None]:
        """Replace our names by the foreign names in ModelErrors raised in the block."""
        try:
            yield
        except ModelError as error:
            raise type(error)(self.restored(str(error))) from error


def word(text: str, where: str) -> str:
    """The text, if it is a plain word; ModelError otherwise. Libraries need operator types and domains as they are."""
    if not WORD.fullmatch(text):
        raise ModelError(f"{where} {text[:80]!a}: not a word; allowed: letters, digits, '_' and '.'")
    return text


COUNT = re.compile(rb"[0-9]{1,9}")
LAYER_TYPE = re.compile(rb"[A-Za-z0-9_.:]{1,255}")
PARAMETER = re.compile(rb'-?[0-9]{1,9}=([A-Za-z0-9_.,+\-]*|"[A-Za-z0-9_.,+\-*/()]*")')
COUNTS = 2  # numbers of layers and blobs, in the second line
BEFORE_BLOBS = 4  # words


def with_sanitized_names(param: bytes, names: SanitizedNames) -> bytes:
    """The file with our names for layers and blobs; `names` keeps the foreign names. ModelError for a malformed line."""
    numbered = ((number, line.split()) for number, line in enumerate(param.split(b"\n"), start=1))
    lines = [(number, words) for number, words in numbered if words]
    if len(lines) < COUNTS or [len(words) for _, words in lines[:COUNTS]] != [1, COUNTS]:
        raise ModelError("ncnn cannot read the param file: its first two lines are not a number and two counts")
    header = [b" ".join(_counts(words, number)) for number, words in lines[:COUNTS]]
    return b"\n".join([*header, *(_layer(words, number, names) for number, words in lines[COUNTS:]), b""])


@contextmanager
def renamed_file(param: Path, names: SanitizedNames) -> Iterator[Path]:
    """A copy of the file with our names, beside it, until the block ends. ModelError as in `with_sanitized_names`."""
    content = with_sanitized_names(param.read_bytes(), names)
    folder = param.with_name(f"{param.name}.own")
    folder.mkdir(mode=0o700, exist_ok=True)  # the folder may be left over from a process that was killed
    try:
        try:
            (folder / param.name).write_bytes(content)
        except OSError as error:
            raise ModelError(f"param file of {len(content)} bytes: {error.strerror}") from error
        yield folder / param.name
    finally:
        shutil.rmtree(folder)


def without_batch(job: JobMessage, runtime: str, most_axes: int) -> list[Shape]:
    """The shapes of the job's inputs for a runtime that has no batch axis. ModelError for a batch above 1, or too many axes."""
    shapes = []
    for name, shape in zip(job.input_names, job.input_shapes, strict=True):
        if len(shape) > 1 and (shape[0] != 1 or len(shape) - 1 > most_axes):
            allowed = f"{runtime} takes batch 1 and at most {most_axes} more axes"
            raise ModelError(f"input '{name}': got shape {shape}; {allowed}")
        shapes.append(shape[1:] if len(shape) > 1 else shape)
    return shapes


def _layer(words: list[bytes], number: int, names: SanitizedNames) -> bytes:
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
