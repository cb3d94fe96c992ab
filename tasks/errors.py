"""Errors that are the user's to mend: one clear line each, exit code 2."""

from adaptive_runtime.errors import AdaptiveError


class UserError(AdaptiveError):
    """Bad input of a command: where, what it got, what is allowed, what to do next. `str(error)` is the finished line."""


def shortened(error: BaseException, length: int = 200) -> str:
    """The message of an exception in one line, cut where it is long."""
    text = " ".join(str(error).split())
    return text if len(text) <= length else text[:length] + "…"
