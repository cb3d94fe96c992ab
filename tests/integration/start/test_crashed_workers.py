"""Tests go on where a worker of the test runner crashes."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PASSES = "def test_{0}(): assert {0} >= 0\n"
CRASHES = "import os\ndef test_crash(): os._exit(1)\n"
SLOW = """
import os, time
def pytest_collection():
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw2":
        time.sleep(3)
"""
HANGS = """
import signal
def test_hang():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.sigwait({signal.SIGUSR1})
"""


def run(folder: Path, *options: str) -> str:
    plugin = (
        "-p",
        "tests.support.scheduling",
        "-p",
        "no:cacheprovider",
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pytest.ini", *plugin, *options]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_test_that_crashed_fails_and_all_others_run_once(tmp_path: Path, workers: str) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for file in range(4):
        tests = "".join(PASSES.format(10 * file + test) for test in range(3))
        (tmp_path / f"test_{file}.py").write_text(tests)
    (tmp_path / "test_2.py").write_text(PASSES.format(30) + CRASHES + PASSES.format(31))
    (tmp_path / "test_3.py").write_text(CRASHES + PASSES.format(40))
    output = run(tmp_path, "-n", workers)
    assert "2 failed, 9 passed" in output
    assert "crashed while running 'test_2.py::test_crash'" in output
    assert "crashed while running 'test_3.py::test_crash'" in output


def test_a_worker_in_the_place_of_a_crashed_one_may_collect_its_tests_slowly(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(SLOW)
    for file in range(2):
        (tmp_path / f"test_{file}.py").write_text(CRASHES)
    for file in range(2, 6):
        (tmp_path / f"test_{file}.py").write_text(PASSES.format(1) + PASSES.format(2))
    assert "2 failed, 8 passed" in run(tmp_path, "-n", "2")


def test_a_test_that_cannot_be_interrupted_is_ended_with_its_worker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\ntimeout = 1\nfaulthandler_timeout = 2\nfaulthandler_exit_on_timeout = true\n"
    )
    (tmp_path / "test_0.py").write_text(PASSES.format(1) + HANGS + PASSES.format(2))
    output = run(tmp_path, "-n", "1")
    assert "1 failed, 2 passed" in output
    assert "crashed while running 'test_0.py::test_hang'" in output
