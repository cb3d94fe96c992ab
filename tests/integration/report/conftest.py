"""Fixtures of this room, for the tests of this tier."""

from tests.support.report.fixtures import made, sources

__all__ = ["made", "sources"]
