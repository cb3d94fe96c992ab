"""Lines for people: foreign text made printable, addresses without passwords, a full disk in the words of many libraries."""

import errno
import re
import unicodedata
from collections.abc import Iterator

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_SPACE_WORDS = (
    "no space left on device",
    "disk quota exceeded",
    "disk is full",
    "disk full",
    "os error 28)",
    "os error 122)",
    "os error 27)",
)
"""Signs of a full disk in errors other than OSError: from Rust libraries (safetensors), SQLite, PostgreSQL and C++."""


USER_AND_PASSWORD = re.compile(r"://([^\s/:@]*):([^\s/]+)@")
PASSWORD_OPTION = re.compile(r"(password=)[^\s&'\"]+", re.IGNORECASE)
HIDDEN = "***"
UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories of characters that are not text: control sequences, directions, halves of pairs, separators of lines."""
LAYOUT = "\n\t"


def printable(text: str) -> str:
    """A text that a terminal shows and does not obey, wherever it comes from: `\\x1b` for an escape character, and so on.

    Line feeds and tabs stay. The one place for it: whatever shows names or lines of devices, servers or files calls it.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one in LAYOUT or unicodedata.category(one) not in UNSEEN else ascii(one)[1:-1] for one in text
    )


def without_passwords(text: str) -> str:
    """A text with `***` for the passwords of all addresses in it: `scheme://USER:PASSWORD@HOST`, `?password=PASSWORD`."""
    return PASSWORD_OPTION.sub(rf"\1{HIDDEN}", USER_AND_PASSWORD.sub(rf"://\1:{HIDDEN}@", text))


def one_line_of(text: str) -> str:
    """A text as one line that is safe to show: printable, without passwords."""
    return printable(without_passwords(" ".join(text.split())))


def chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, the members of its group, its causes and its contexts; each once."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        left += [other for other in (one.__cause__, one.__context__) if other is not None]


def no_space(error: BaseException) -> BaseException | None:
    """The first exception of a chain that reports a full disk; None if there is none."""
    return next(filter(_says_no_space, chain(error)), None)


def _says_no_space(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return True
    text = str(error).lower()
    return isinstance(error, Exception) and any(words in text for words in NO_SPACE_WORDS)


def full_disk(error: BaseException) -> str | None:
    """One line about a full disk behind an exception; None for another error."""
    found = no_space(error)
    if found is None:
        return None
    first = printable(str(found)).strip().partition("\n")[0] or type(found).__name__
    return f"the disk is full: {first}; make room; the same command goes on"
