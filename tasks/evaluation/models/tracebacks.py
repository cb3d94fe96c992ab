"""The origin of an exception in the user's code, as `FILE:LINE`."""

import traceback
from pathlib import Path

from tasks.base.errors import shortened
from tasks.evaluation.models.own_code import INSTALLED, own_names

USERS_ENDS = (Exception, SystemExit)
"""Errors of the user's code. SystemExit is one: `sys.exit(0)` there would end the whole command as if it had succeeded."""


def told(error: BaseException, folder: str | None) -> str:
    """Type and message of an exception, and the innermost line below `folder` in its traceback."""
    kind, message = type(error).__name__, own_names(shortened(error))
    text = f"{kind} ({message})" if message else kind
    place = None if folder is None else line_of(error, folder)
    return f"{text} at {place}" if place else text


def line_of(error: BaseException, folder: str) -> str | None:
    """FILE:LINE of the innermost line below `folder` in the exception's traceback; for a syntax error, its own position."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{_shown(error.filename)}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_below(frame.filename, folder)]
    return f"{_shown(frames[-1].filename)}:{frames[-1].lineno}" if frames else None


def _is_below(file: str, folder: str) -> bool:
    path = Path(file)
    return path.is_relative_to(folder) and not INSTALLED.intersection(path.parts)


def _shown(file: str) -> str:
    """The path, relative to the working folder if it is inside."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
