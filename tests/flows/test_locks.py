"""Locks between runs: an output folder and a device have one user at a time."""

import threading
import time
from pathlib import Path

import pytest

from flows.machine.locks import only_run, only_user
from tasks.errors import UserError


def test_a_second_run_in_the_same_output_folder_is_refused(tmp_path: Path) -> None:
    with (
        only_run(tmp_path / "out"),
        pytest.raises(UserError, match="is in use by another run"),
        only_run(tmp_path / "out"),
    ):
        pass


def test_the_output_folder_is_free_after_a_run(tmp_path: Path) -> None:
    with only_run(tmp_path):
        pass
    with only_run(tmp_path):
        assert (tmp_path / ".lock").exists()


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with (
        pytest.raises(UserError, match=r"output folder .*out': cannot be written .*output_dir=PATH"),
        only_run(tmp_path / "out"),
    ):
        pass


def test_a_device_is_used_by_one_at_a_time() -> None:
    order: list[str] = []

    def use(name: str) -> None:
        with only_user("board"):
            order.append(f"{name} in")
            time.sleep(0.3)
            order.append(f"{name} out")

    threads = [threading.Thread(target=use, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.split()[1] for line in order] == ["in", "out", "in", "out"]


def test_different_devices_do_not_wait_for_each_other() -> None:
    is_used = threading.Event()

    def use() -> None:
        with only_user("b"):
            is_used.set()

    with only_user("a"):
        thread = threading.Thread(target=use)
        thread.start()
        assert is_used.wait(60)
    thread.join()
