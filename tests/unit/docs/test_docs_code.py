"""Python that the documents show compiles, and what they and messages install is there to be installed."""

import re
import tomllib
from pathlib import Path

import pytest

from profiling_agents.backends import EXTRAS, installation
from tests.support.docs.documents import DOCUMENTS, ROOT, blocks
from tests.unit.docs.test_house import FOLDERS

PYTHON = {document: [block for block in blocks(document) if block.language == "python"] for document in DOCUMENTS}
SHOWING = [document for document, shown in PYTHON.items() if shown]
GUIDES = [*(document for document in DOCUMENTS if document.name != "CHANGELOG.md"), ROOT / "device" / "README.md"]
"""The changelog tells what was."""
FILES = [
    file
    for folder in (*FOLDERS, "deploy", "notebooks")
    for file in sorted((ROOT / folder).rglob("*"))
    if file.suffix in (".py", ".yaml", ".json", ".ipynb") and file.is_file() and file != Path(__file__).resolve()
]
ON_NO_INDEX = re.compile(r"\bautotailor([-_]runtime)?\\?\[|pip install [^`\n;&#]*?\bautotailor([-_]runtime)?(?![\w.-])")
OF_CLONE, OF_WHEEL = re.compile(r"'\.\[([\w,]+)\]'"), re.compile(r"\bautotailor_runtime-\S+?\.whl\[([\w,]+)\]")


@pytest.mark.parametrize(
    "line",
    [
        "pip install 'autotailor[cloud]'",
        "pip install autotailor",
        "pip install -U 'autotailor-runtime[adapt]'",
        "the extra autotailor[cloud]",
    ],
)
def test_installing_the_project_from_an_index_is_seen(line: str) -> None:
    assert ON_NO_INDEX.search(line)
    assert not ON_NO_INDEX.search(
        "pip install 'autotailor_runtime-1-py3-none-any.whl[adapt]' && autotailor-runtime serve"
    )


def test_nothing_tells_to_install_the_project_from_an_index() -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in (*GUIDES, *FILES)}
    found = [
        f"{file.relative_to(ROOT)}: {one.group()}" for file, text in texts.items() for one in ON_NO_INDEX.finditer(text)
    ]
    assert not found, f"{found}; allowed: pip install -e '.[EXTRA]' in the clone, or the wheel of make device-wheel"
    for pattern, project in ((OF_CLONE, ROOT), (OF_WHEEL, ROOT / "device")):
        settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
        named = {name for text in texts.values() for one in pattern.findall(text) for name in one.split(",")}
        assert named
        assert named <= set(settings["project"]["optional-dependencies"])


def test_runtimes_that_are_extras_are_extras_of_the_project() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(settings["project"]["optional-dependencies"]) >= EXTRAS
    for name in EXTRAS:
        assert f"pip install -e '.[{name}]'" in installation(name)


def test_the_documents_show_code() -> None:
    assert {"README.md", "tailor_ir.md", "agents.md"} <= {document.name for document in SHOWING}


@pytest.mark.parametrize("document", SHOWING, ids=lambda path: path.name)
def test_every_shown_block_compiles(document: Path) -> None:
    for block in PYTHON[document]:
        assert compile(block.text, block.where, "exec")
