"""Pictures with a partner each, of all kinds of data: what does not belong together is one line with its file."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.data.paired_files import HEIGHT, WIDTH, assert_refused, put, settings, write_masks, write_targets

KINDS: dict[str, tuple[Callable[[Path, int], Path], dict[str, str]]] = {
    "pairs": (write_targets, {"a": "input", "b": "target", "as": "input", "bs": "target", "end": "", "grey": "L"}),
    "masks": (write_masks, {"a": "image", "b": "mask", "as": "images", "bs": "masks", "end": r"\.png", "grey": "a"}),
}
"""What writes them. `a`, `b`: a picture and its partner in messages; `as`, `bs`: their folders; `end`: of partners' names."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("{bs}/3.png", None, r"{a} '.*{as}/3\.png': no {b} '.*{bs}/3\.(\*|png)'; add or remove it"),
        ("{as}/3.png", None, r"{b} '.*{bs}/3\.png': no {a} of this name in '"),
        ("{as}/3.png", b"", r"{a} '.*{as}/3\.png': cannot be decoded"),
        ("{bs}/3.png", b"x", r"{b} '.*{bs}/3\.png': cannot be decoded"),
        (
            "{bs}/3.png",
            np.zeros((HEIGHT + 1, WIDTH), np.uint8),
            r"{b} '.*{bs}/3\.png': 40 x 31 pixels, but '.*{as}/3\.png' has 40 x 30; replace one of them$",
        ),
        ("{bs}/3.png", np.zeros((HEIGHT, WIDTH), np.uint16), r"3\.png': is a picture of mode I(;16)?; allowed: {grey}"),
        (
            "{bs}",
            None,
            r"no folders '{as}' and '{bs}'; allowed: {as}/\* and {bs}/\*{end} of the same names, or a list pa",
        ),
    ],
)
def test_pictures_and_partners_that_do_not_belong_together_are_one_line(
    kind: str, name: str, content: bytes | np.ndarray | None, told: str, tmp_path: Path
) -> None:
    write, words = KINDS[kind]
    put(write(tmp_path, 6) / name.format(**words), content)
    assert_refused(settings(kind, tmp_path), told.format(**words))
