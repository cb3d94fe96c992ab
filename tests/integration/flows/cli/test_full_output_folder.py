"""A run in an output folder without room ends in one line."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few kilobytes, where this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system may be mounted")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.long
def test_a_full_disk_at_the_start_of_a_run_is_one_line(small_disk: Path, tmp_path: Path) -> None:
    (small_disk / "filled").write_bytes(bytes(12 * 1024))
    command = [sys.executable, "-m", "flows.cli", "compile", "model.name=test_resnet", f"output_dir={small_disk}"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    *_, line = ended.stderr.splitlines()
    assert "the disk is full" in line
    assert "Traceback" not in ended.stderr
