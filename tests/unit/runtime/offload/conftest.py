"""Fixtures of this room, for the tests of this tier."""

from tests.support.links.fixtures import chain, device, reference, split, token

__all__ = ["chain", "device", "reference", "split", "token"]
