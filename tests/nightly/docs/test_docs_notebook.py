"""The notebook runs, and what is committed of it is small and holds nothing of the machine that ran it."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.support.docs.documents import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|usr|opt|var|Users)/")
MAX_KIB = 64
LIMIT_S = 1200
"""Of a cell, on a machine that is busy."""


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_committed_notebook_is_executed_small_and_clean(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert path.stat().st_size < MAX_KIB * 1024
    assert not ABSOLUTE_PATH.search(path.read_text(encoding="utf-8"))
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert {(output.output_type, output.get("name")) for output in outputs} == {("stream", "stdout")}


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_prints_what_is_committed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(path, as_version=4)
    committed = printed(notebook)
    monkeypatch.chdir(tmp_path)  # where kernel and client meet: sockets in files, not on the network
    NotebookClient(notebook, timeout=LIMIT_S, config=Config(KernelManager={"transport": "ipc"})).execute()
    assert sum(map(bool, committed)) > 5
    assert printed(notebook) == committed


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """What each cell printed (warnings are not), without what depends on the processor: rounding, a number behind ≈, and a line
    that begins with ≈ and no number."""
    cells = [[out.text for out in cell.outputs if out.get("name") == "stdout"] for cell in code_cells(notebook)]
    return [re.sub(r"\d\.\de-\d+|≈ [\d.]+(e[+-]\d+)?|(?m:^≈ .*)", "small", "".join(texts)) for texts in cells]
