"""Fixtures of this room, for the tests of this tier."""

from tests.support.data.fixtures import write_images

__all__ = ["write_images"]
