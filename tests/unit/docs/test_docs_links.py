"""Relative links of the documents lead somewhere."""

from pathlib import Path

import pytest

from tests.support.docs.documents import DOCUMENTS, ROOT, anchors, links


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    for path, anchor in links(document):
        target = (document.parent / path).resolve() if path else document
        assert target.is_relative_to(ROOT), f"'{path}' leads outside the repository"
        assert target.exists(), f"'{path}' does not exist"
        if anchor:
            assert anchor in anchors(target), f"'{path}#{anchor}': no such heading"


def test_every_guide_is_linked_from_the_readme() -> None:
    linked = {(ROOT / path).resolve() for path, _ in links(ROOT / "README.md")}
    assert linked >= set((ROOT / "docs").glob("*.md"))
