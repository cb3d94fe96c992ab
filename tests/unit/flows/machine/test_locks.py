"""Locks between runs: an output folder and a device have one user at a time."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from flows.machine import in_turn, only_run
from tasks.base.errors import UserError
from tests.support.threads import all_at_once


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
        with in_turn("board"):
            order.append(f"{name} in")
            time.sleep(0.3)
            order.append(f"{name} out")

    all_at_once(*(partial(use, name) for name in "ab"))
    assert [line.split()[1] for line in order] == ["in", "out", "in", "out"]


def test_different_devices_do_not_wait_for_each_other() -> None:
    is_used = threading.Event()

    def use() -> None:
        with in_turn("b"):
            is_used.set()

    with in_turn("a"):
        thread = threading.Thread(target=use)
        thread.start()
        assert is_used.wait(60)
    thread.join()
