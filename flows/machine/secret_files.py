"""A program with secrets of files in its environment: `python -m flows.machine.secret_files NAME=FILE… -- PROGRAM WORD…`.

For programs that take a secret from the environment alone, where the secret should be in a file alone: no config of
containers, and nothing that shows such a config, has it then.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.errors import UserError

END = "--"
FORM = "write NAME=FILE… -- PROGRAM WORD…"
WHERE = "secret files"


def divided(words: Sequence[str]) -> tuple[dict[str, Path], list[str]]:
    """Files by the names of variables, and the program with its words. UserError: something else."""
    if END not in words or words[-1] == END:
        raise UserError(WHERE, "there is no program", next_step=FORM)
    at = words.index(END)
    files = {name: Path(file) for name, mark, file in (word.partition("=") for word in words[:at]) if mark}
    if len(files) != at:
        raise UserError(WHERE, "a word before '--' is no NAME=FILE", next_step=FORM)
    return files, list(words[at + 1 :])


def read(name: str, file: Path) -> str:
    """A secret: the file without the end of its line. UserError: it cannot be read, or is empty."""
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise UserError(name, f"'{file}' cannot be read ({reason})") from error
    if not secret or "\0" in secret:
        raise UserError(name, f"'{file}' has no secret in it")
    return secret


def main(words: Sequence[str]) -> int:
    """Become the program. Exit code 2 with one line where that cannot be."""
    try:
        files, program = divided(words)
        os.environ |= {name: read(name, file) for name, file in files.items()}
        os.execvp(program[0], program)  # returns by an exception alone
    except (OSError, UserError) as error:
        print(f"autotailor: {error}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
