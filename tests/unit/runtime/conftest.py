"""Fixtures of this room, for the tests of this tier."""

from tests.support.runtime.fixtures import adaptable_bundle, copy, local, plain_bundle

__all__ = ["adaptable_bundle", "copy", "local", "plain_bundle"]
