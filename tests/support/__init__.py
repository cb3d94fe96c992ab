"""Helpers and fixtures that tests of several tiers share, by room."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

SUPPORT = Path(__file__).parent
"""The folder of this package: scripts that tests start lie in it."""
FEW_EXAMPLES = 8
"""Examples of each property in `make test`; `make test-all` tries as many as the property names."""


def examples(most: int, few: int = FEW_EXAMPLES) -> int:
    """The number of examples to try: `most` in `make test-all`, a few otherwise."""
    return most if settings.get_current_profile_name() == "nightly" else min(most, few)


def long(*values: Any) -> Any:
    """A case of a parametrised test that `make test-all` alone runs, since others of its kind run sooner."""
    return pytest.param(*values, marks=pytest.mark.long)
