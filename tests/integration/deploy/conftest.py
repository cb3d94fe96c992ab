"""Fixtures of this room, for the tests of this tier."""

from tests.support.deploy.fixtures import bundle, net, small_bundle, wheel

__all__ = ["bundle", "net", "small_bundle", "wheel"]
