"""Runs a program with secrets from files in its environment: `python -m flows.machine.secret_files NAME=FILE… -- PROGRAM
WORD…`.

For programs that accept a secret only from the environment, while it should be stored only in a file: container configs, and
tools that show them, then do not contain it.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.base.errors import UserError

END = "--"
FORM = "write NAME=FILE… -- PROGRAM WORD…"
WHERE = "secret files"


def divided(words: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Files by variable name, and the program with its words. UserError for any other form."""
    if END not in words or words[-1] == END:
        raise UserError(WHERE, "there is no program", next_step=FORM)
    at = words.index(END)
    files = {name: Path(file) for name, mark, file in (word.partition("=") for word in words[:at]) if mark}
    if len(files) != at:
        raise UserError(WHERE, "a word before '--' is no NAME=FILE", next_step=FORM)
    return files, list(words[at + 1 :])


def read(name: str, file: Path) -> str:
    """A secret: the content of a file without surrounding whitespace. UserError if it cannot be read, or is empty."""
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise UserError(name, f"'{file}' cannot be read ({reason})") from error
    if not secret or "\0" in secret:
        raise UserError(name, f"'{file}' has no secret in it")
    return secret


def main(words: Sequence[str]) -> int:
    """Replace this process by the program. Exit code 2 with one line if that fails."""
    try:
        files, program = divided(words)
        os.environ |= {name: read(name, file) for name, file in files.items()}
        os.execvp(program[0], program)  # returns only by an exception
    except (OSError, UserError) as error:
        print(f"autotailor: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
