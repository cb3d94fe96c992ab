"""What the documents show: fenced blocks, files, command lines, links."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("**/*.md")])
NOT_RUN = "<!-- not run"
SHELLS = ("bash", "sh", "console")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|yaml))\n")
INLINE = re.compile(r"`(autotailor [^→`\n][^`\n]*)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block. `run`: not marked with `<!-- not run: why -->` on the line before."""

    document: Path
    line: int
    language: str
    text: str
    run: bool

    @property
    def where(self) -> str:
        """File and line, for messages and test names."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that the block shows, when its first line is a comment with a path."""
        found = FILE_NAME.match(self.text)
        return found.group(1) if found else None


def blocks(document: Path) -> Iterator[Block]:
    """All fenced blocks of a document, in order."""
    text = document.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        before = text[: found.start()].rstrip().rsplit("\n", 1)[-1]
        line = text.count("\n", 0, found.start()) + 1
        yield Block(document, line, found.group(1), found.group(2), not before.startswith(NOT_RUN))


def write_files(document: Path, folder: Path) -> None:
    """Write the files that a document shows into a folder."""
    for block in blocks(document):
        if block.file_name is not None:
            path = folder / block.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Command:
    """A command line `autotailor …` or `autotailor-runtime …` and where it is shown."""

    where: str
    document: Path
    words: tuple[str, ...]


MAIN, ON_DEVICES = "autotailor", "autotailor-runtime"


def device_commands(document: Path) -> Iterator[Command]:
    """All `autotailor-runtime` command lines in shell blocks of a document."""
    for block in blocks(document):
        if block.language in SHELLS and block.run:
            for line in block.text.replace("\\\n", " ").splitlines():
                for part in line.split("&&"):
                    yield from _command(part, block.where, document, ON_DEVICES)


def commands(document: Path) -> Iterator[Command]:
    """All `autotailor` command lines of a document: in shell blocks, and inline ones that are whole (no ellipsis)."""
    for block in blocks(document):
        if block.language in SHELLS and block.run:
            for line in block.text.replace("\\\n", " ").splitlines():
                yield from _command(line.removeprefix("$ "), block.where, document)
    prose = FENCE.sub("", document.read_text(encoding="utf-8"))
    for found in INLINE.finditer(prose):
        words = found.group(1).split()
        named_only = len(words) == 2 and not words[1].startswith("-")  # `autotailor retarget` names the command
        if "…" not in found.group(1) and "COMMAND" not in words and not named_only:
            yield from _command(found.group(1), str(document.relative_to(ROOT)), document)


def _command(line: str, where: str, document: Path, program: str = MAIN) -> Iterator[Command]:
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if words and Path(words[0]).name == program:
        yield Command(where, document, tuple(words[1:]))


def links(document: Path) -> Iterator[tuple[str, str]]:
    """(path, anchor) of every relative link; the path is empty for links inside the document."""
    prose = FENCE.sub("", document.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(document: Path) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    prose = FENCE.sub("", document.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
