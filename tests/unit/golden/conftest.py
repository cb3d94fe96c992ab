"""Fixtures of this room, for the tests of this tier."""

from tests.support.golden.fixtures import golden

__all__ = ["golden"]
