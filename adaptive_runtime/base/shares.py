"""Shares: numbers from 0 to 1."""


def clipped_share(value: float) -> float:
    """The value clipped to 0 to 1."""
    return min(1.0, max(0.0, value))
