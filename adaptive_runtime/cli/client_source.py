"""`autotailor-runtime client-source`: copies the C client of the local socket for compiling into a program."""

import argparse
from pathlib import Path

from adaptive_runtime.base.errors import AdaptiveError

HELP = "Copy the C client of `serve --socket` to a folder, with an example in C++."
SOURCES = Path(__file__).parents[1] / "clients" / "c"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("folder", type=Path, help="made where it is missing; files of the same names are replaced")


def run(arguments: argparse.Namespace) -> None:
    """Copy the files and print their names. AdaptiveError: they cannot be written."""
    folder: Path = arguments.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(SOURCES.iterdir()):
            (folder / source.name).write_bytes(source.read_bytes())
            print(folder / source.name)
    except OSError as error:
        got = f"cannot be written ({error.strerror})"
        raise AdaptiveError(f"folder '{folder}'", got, next_step="choose another one") from error
