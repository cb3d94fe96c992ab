"""Errors that the user can fix: one clear line each, exit code 2."""

from adaptive_runtime.base.errors import AdaptiveError


class UserError(AdaptiveError):
    """Bad input of a command: place, value, allowed values, next step. `str(error)` is the finished line."""


def shortened(error: BaseException, length: int = 200) -> str:
    """The message of an exception in one line, truncated if it is long."""
    text = " ".join(str(error).split())
    return text if len(text) <= length else text[:length] + "…"
