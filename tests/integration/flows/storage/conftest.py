"""Fixtures of this room, for the tests of this tier."""

from tests.support.storage.fixtures import bucket, gcs, own_cache, sshd, url

__all__ = ["bucket", "gcs", "own_cache", "sshd", "url"]
