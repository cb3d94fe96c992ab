"""Errors on the device that are the user's to mend: one clear line each, without the passwords of addresses."""

import re

USER_AND_PASSWORD = re.compile(r"://([^\s/:@]*):([^\s/]+)@")
PASSWORD_OPTION = re.compile(r"(password=)[^\s&'\"]+", re.IGNORECASE)
HIDDEN = "***"


def without_passwords(text: str) -> str:
    """A text with `***` for the passwords of all addresses in it: `scheme://USER:PASSWORD@HOST`, `?password=PASSWORD`."""
    return PASSWORD_OPTION.sub(rf"\1{HIDDEN}", USER_AND_PASSWORD.sub(rf"://\1:{HIDDEN}@", text))


class NotBackError(Exception):
    """Other devices have not answered a run within the time for which home waits before a stand-in begins."""


class AdaptiveError(Exception):
    """Bad input on the device: where, what it got, what is allowed, what to do next. `str(error)` is the finished line."""

    def __init__(self, where: str, got: str, *, allowed: str = "", next_step: str = "") -> None:
        line = f"{where}: {got}"
        if allowed:
            line += f"; allowed: {allowed}"
        if next_step:
            line += f"; {next_step}"
        super().__init__(without_passwords(" ".join(line.split())))
