"""Secrets of files reach a program's environment, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs.documents import ROOT

PROGRAM = "import os; print(os.environ['PREFECT_API_AUTH_STRING'], os.getpid())"


def started(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "flows.machine.secret_files", *words]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def test_a_program_gets_secrets_of_files_by_its_environment(tmp_path: Path) -> None:
    (tmp_path / "prefect").write_text("admin:not told\n")
    found = started(f"PREFECT_API_AUTH_STRING={tmp_path}/prefect", "--", sys.executable, "-c", PROGRAM)
    assert found.stdout.startswith("admin:not told ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["NAME=nowhere", "--", "true"], "NAME: 'nowhere' cannot be read (No such file or directory)"),
        (["NAME=/dev/null", "--", "true"], "NAME: '/dev/null' has no secret in it"),
        (["NAME", "--", "true"], "a word before '--' is no NAME=FILE"),
        (["true"], "there is no program; write NAME=FILE… -- PROGRAM WORD…"),
        (["--", "/nowhere/program"], "No such file or directory"),
    ],
)
def test_what_cannot_be_started_is_one_line(words: list[str], line: str) -> None:
    found = started(*words)
    assert found.returncode == 2
    assert line in found.stderr
    assert found.stderr.count("\n") == 1
