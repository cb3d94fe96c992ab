"""Fixtures of this room, for the tests of this tier."""

from tests.support.fleet.fixtures import copy, plain_bundle, relay, service

__all__ = ["copy", "plain_bundle", "relay", "service"]
