"""Fixtures of this room, for the tests of this tier."""

from tests.support.finetune.fixtures import baseline, undisturbed

__all__ = ["baseline", "undisturbed"]
