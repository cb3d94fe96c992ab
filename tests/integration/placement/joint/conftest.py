"""Fixtures of this room, for the tests of this tier."""

from tests.support.joint.fixtures import run

__all__ = ["run"]
