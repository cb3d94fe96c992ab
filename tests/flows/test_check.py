"""Typos in the space, impossible resolutions and limits that no SubNet keeps are told before anything is trained."""

from pathlib import Path

import pytest

from flows.cli import main
from tests.flows.tiny import TINY

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("space.stage.9.depth=[0]",), "space: no variable matches 'stage.9.depth'"),
        (("search.limits.macs=1000",), "search.limits.macs: macs=1000 is below the least of any SubNet"),
        (("search.limits.memory_mib=0.001",), "search.limits.memory_mib: memory_mib=0.001 is below the least"),
    ],
)
def test_what_cannot_work_is_told_before_training(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    assert main(["search", *TINY, *words, f"output_dir={output}"]) == 2
    assert any(text.startswith(f"autotailor: {line}") for text in capsys.readouterr().err.splitlines())
    assert not list(output.glob("stages/base/*"))
    assert not list(output.glob("luts/*"))
