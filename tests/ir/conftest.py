"""Every pass of every network that these tests compile is checked."""

from collections.abc import Iterator

import pytest

from tests.ir import spec


@pytest.fixture(scope="session", autouse=True)
def checked_passes() -> Iterator[None]:
    with spec.installed():
        yield
