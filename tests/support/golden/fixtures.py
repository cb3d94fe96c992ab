"""The fixture that compares with golden files or, with --update-golden, writes them."""

from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support.golden.comparison import UPDATE, check

FILES = Path(__file__).parent / "files"


class Golden(Protocol):
    """Compares plain data with `files/NAME.json`. rtol: relative, of floats; all else is exact."""

    def __call__(self, name: str, value: Any, *, rtol: float) -> None: ...


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    update = bool(request.config.getoption(UPDATE))

    def compare(name: str, value: Any, *, rtol: float) -> None:
        check(FILES / f"{name}.json", value, rtol, update=update)

    return compare
