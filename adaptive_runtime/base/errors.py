"""Errors on the device that the user can mend: one clear line each, without the passwords of addresses."""

from profiling_agents.lines import HIDDEN, one_line_of, without_passwords

__all__ = ["HIDDEN", "AdaptiveError", "NotBackError", "without_passwords"]


class NotBackError(Exception):
    """Other devices have not answered a run in the time that the coordinator waits before its fallback begins."""


class AdaptiveError(Exception):
    """Bad input on the device: place, input, allowed values, next step. `str(error)` is the finished line."""

    def __init__(self, where: str, got: str, *, allowed: str = "", next_step: str = "") -> None:
        line = f"{where}: {got}"
        if allowed:
            line += f"; allowed: {allowed}"
        if next_step:
            line += f"; {next_step}"
        super().__init__(one_line_of(line))
