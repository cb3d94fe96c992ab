"""Folders of small real image files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.data.coloured_images import COLOURS, encoded


@pytest.fixture
def write_images() -> Callable[[Path, int], None]:
    """write(folder, count): `count` files for each colour, alternating PNG and JPEG."""

    def write(folder: Path, count: int) -> None:
        for name, colour in COLOURS.items():
            (folder / name).mkdir(parents=True)
            for index in range(count):
                suffix = ("png", "jpeg")[index % 2]
                (folder / name / f"{index}.{suffix}").write_bytes(encoded(colour, file_format=suffix.upper()))

    return write
