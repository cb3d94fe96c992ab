"""Fixtures of this room, for the tests of this tier."""

from tests.support.view.fixtures import viewed

__all__ = ["viewed"]
