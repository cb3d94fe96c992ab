"""Python that the documents show runs from the first block of a document to the last."""

from pathlib import Path

import pytest

from tests.support.docs.documents import DOCUMENTS, ROOT, blocks

PYTHON = {document: [block for block in blocks(document) if block.language == "python"] for document in DOCUMENTS}
SHOWING = [document for document, shown in PYTHON.items() if shown]
ONLY_COMPILED = ("running.md",)  # shows code that talks to a Prefect server


@pytest.mark.parametrize(
    "document", [d for d in SHOWING if d.name not in ONLY_COMPILED], ids=lambda path: str(path.relative_to(ROOT))
)
def test_shown_code_runs(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "shown"}
    run = [block for block in PYTHON[document] if block.run]
    assert run
    for block in run:
        padding = "\n" * block.line  # so that a traceback has the document's line numbers
        exec(compile(padding + block.text, str(block.document), "exec"), names)
