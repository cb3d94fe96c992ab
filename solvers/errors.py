"""Errors for problems that a solver cannot solve. Callers turn each into a message for their user."""


class SolverError(Exception):
    """The base of all errors of this package."""


class NotANumber(SolverError):
    """A table has a NaN entry."""


class TooEntangled(SolverError):
    """Too many variables share tables: in every order of elimination the tables become too large."""

    def __init__(self, entries: float) -> None:
        """entries: total size of all tables in the best order that was found."""
        super().__init__(f"tables of {entries:.1e} numbers")
        self.entries = entries


class Infeasible(SolverError):
    """No code is within the budgets."""


class Undecided(Infeasible):
    """No allowed code was found, but one may exist; its gain is at most `most`."""

    def __init__(self, most: float) -> None:
        super().__init__(f"a gain of {most:g} at most")
        self.most = most
