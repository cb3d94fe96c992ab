"""Fixtures of this room, for the tests of this tier."""

from tests.support.tables.fixtures import device, supernet

__all__ = ["device", "supernet"]
