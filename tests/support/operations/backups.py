"""The commands of docs/operations.md that make a backup and bring it back, run by bash."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support.docs.documents import ROOT, blocks

BEGIN = "mkdir --parents"
"""The last line that every block needs from the block that names the folder of the backup."""


def shown(mark: str) -> str:
    """The one block that is run on one machine and has these words."""
    (found,) = (block.text for block in blocks(ROOT / "docs" / "operations.md") if block.run and mark in block.text)
    return found


def run_shown(folder: Path, marks: list[str], changes: Mapping[str, str], passwords: Path | None = None) -> str:
    """The output of blocks, each by words that it has, in a working folder. changes: words of the page, and those of a test.

    passwords: the file of PGPASSFILE.
    """
    lines = shown(BEGIN).splitlines()
    begin = lines[: next(number for number, line in enumerate(lines, 1) if line.startswith(BEGIN))]
    script = "\n".join(["set -eu", *begin, *map(shown, marks)])
    for word, other in changes.items():
        script = script.replace(word, other)
    given = {} if passwords is None else {"PGPASSFILE": str(passwords)}
    found = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=os.environ | given, capture_output=True, text=True, timeout=300
    )
    assert found.returncode == 0, found.stderr
    return found.stdout
