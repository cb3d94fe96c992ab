"""Errors on the device that are the user's to mend: one clear line each."""


class AdaptiveError(Exception):
    """Bad input on the device: where, what it got, what is allowed, what to do next. `str(error)` is the finished line."""

    def __init__(self, where: str, got: str, *, allowed: str = "", next_step: str = "") -> None:
        line = f"{where}: {got}"
        if allowed:
            line += f"; allowed: {allowed}"
        if next_step:
            line += f"; {next_step}"
        super().__init__(" ".join(line.split()))
