"""Python that the documents show compiles."""

from pathlib import Path

import pytest

from tests.support.docs.documents import DOCUMENTS, blocks

PYTHON = {document: [block for block in blocks(document) if block.language == "python"] for document in DOCUMENTS}
SHOWING = [document for document, shown in PYTHON.items() if shown]


def test_the_documents_show_code() -> None:
    assert {"README.md", "tailor_ir.md", "agents.md"} <= {document.name for document in SHOWING}


@pytest.mark.parametrize("document", SHOWING, ids=lambda path: path.name)
def test_every_shown_block_compiles(document: Path) -> None:
    for block in PYTHON[document]:
        assert compile(block.text, block.where, "exec")
