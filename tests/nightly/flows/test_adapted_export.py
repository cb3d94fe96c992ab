"""`export.adapted`: side files that a stream has left are exported with the winners, from the command line."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from flows.cli import main
from tasks.base.schemas.exports import Exports
from tests.support.flows.fixtures import Command
from tests.support.flows.tiny import FEW, TINY

STREAM = (
    FEW,
    "drift.corruptions=[contrast,impulse_noise]",
    "drift.images=60",
    "stream.methods=[batchnorm]",
    "stream.subnets=[smallest_budget]",
    "stream.window_images=40",
)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("missing", "export.adapted: '{}' does not exist; allowed: side files, as autotailor stream writes them"),
        ("damaged", "side file '{}': cannot be read ("),
    ],
)
def test_files_that_no_export_takes_are_one_line_before_any_stage(
    name: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = tmp_path / name, tmp_path / "out"
    (tmp_path / "damaged").write_bytes(b"no tensors")
    assert main(["export", *TINY, f"output_dir={output}", f"export.adapted=[{file}]"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert line.format(file) in told
    assert not (output / "stages").exists()


def test_a_side_file_of_a_stream_is_exported(finished: dict[str, Any], command: Command, tmp_path: Path) -> None:
    (streamed,) = command("stream", *STREAM)["stages"]
    file = Path(streamed["folder"]) / "adapted" / "batchnorm.safetensors"
    (stage,) = exported(command, file)
    assert not stage["cached"]
    found = Exports.read(Path(stage["folder"]) / "exports.json")
    told = {card.digest: card.adapted for card in found.subnets if card.adapted is not None}
    assert told.keys() == {streamed["result"]["digest"]}
    assert all(one.state == "ok" for card in found.subnets for one in card.files.values())
    (again,) = exported(command, Path(shutil.copy(file, tmp_path / "renamed.safetensors")))
    assert again["cached"], "the content counts, not the name"
    with safe_open(file, "pt") as content:
        tensors = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118 - no mapping
        save_file({name: 1.01 * one for name, one in tensors.items()}, tmp_path / "other", content.metadata())
    (other,) = exported(command, tmp_path / "other")
    assert not other["cached"]


def exported(command: Command, file: Path) -> list[dict[str, Any]]:
    """The export stage of a run whose earlier stages are finished."""
    stages = command("export", FEW, f"export.adapted=[{file}]", "export.bundle=true")["stages"]
    return [stage for stage in stages if stage["stage"].startswith("export/")]


def test_a_side_file_of_the_network_before_it_was_fine_tuned_is_one_line(
    finished: dict[str, Any], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    (streamed,) = command("stream", *STREAM, "stream.subnets=[original]")["stages"]
    with pytest.raises(AssertionError):
        exported(command, Path(streamed["folder"]) / "adapted" / "batchnorm.safetensors")
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("autotailor: ")]
    assert len(errors) == 1
    assert "batchnorm.safetensors': it belongs to the SuperNet " in errors[0]
