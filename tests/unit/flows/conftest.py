"""Unit tests of flows have a cache folder of their own."""

from tests.support.flows.fixtures import own_cache

__all__ = ["own_cache"]
