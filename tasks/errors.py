"""Errors that are the user's to mend: one clear line each, exit code 2."""


class UserError(Exception):
    """Bad input: where, what it got, what is allowed, what to do next. `str(error)` is the finished line."""

    def __init__(self, where: str, got: str, *, allowed: str = "", next_step: str = "") -> None:
        line = f"{where}: {got}"
        if allowed:
            line += f"; allowed: {allowed}"
        if next_step:
            line += f"; {next_step}"
        super().__init__(" ".join(line.split()))


def shortened(error: BaseException, length: int = 200) -> str:
    """The message of an exception in one line, cut where it is long."""
    text = " ".join(str(error).split())
    return text if len(text) <= length else text[:length] + "…"
