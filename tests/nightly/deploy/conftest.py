"""Fixtures of this room, for the tests of this tier."""

from tests.support.deploy.fixtures import net, wheel

__all__ = ["net", "wheel"]
