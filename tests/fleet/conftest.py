"""Bundles of the tests of the run time."""

from tests.runtime.conftest import copy, plain_bundle

__all__ = ["copy", "plain_bundle"]
