"""The niceness of a process and its threads."""

import multiprocessing
import os
import threading
from concurrent.futures import ProcessPoolExecutor

import pytest

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import run_at, step_back


def nicenesses(*wanted: int) -> list[list[int]]:
    """Of three threads after each step: one that was there, one that is new, and the main one, which then steps back by one."""
    over, waits, found = threading.Event(), threading.Barrier(2), list[list[int]]()
    waiting = threading.Thread(target=lambda: (waits.wait(), over.wait()), daemon=True)
    waiting.start()
    waits.wait()
    for niceness in wanted:
        run_at(niceness)
        new = list[int]()
        thread = threading.Thread(target=lambda new=new: new.append(os.getpriority(os.PRIO_PROCESS, 0)))
        thread.start()
        thread.join()
        assert waiting.native_id is not None
        found.append([os.getpriority(os.PRIO_PROCESS, waiting.native_id), *new, os.getpriority(os.PRIO_PROCESS, 0)])
    step_back(0)
    step_back(wanted[-1] + 1)
    found.append([os.getpriority(os.PRIO_PROCESS, 0)])
    over.set()
    waiting.join()
    return found


def test_all_threads_have_the_niceness_and_none_goes_before_others_by_stepping_back() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        assert process.submit(nicenesses, 3, 5).result(120) == [[3] * 3, [5] * 3, [6]]


def test_a_niceness_that_cannot_be_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdaptiveError, match=r"^niceness: -21; allowed: -20 \(first\) to 19 \(last\)$"):
        run_at(-21)

    def refused(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refused)
    now = os.getpriority(os.PRIO_PROCESS, 0)
    line = (
        rf"^niceness: -5: this user may not go before other programs; allowed: {now} to 19; let systemd \(Nice=\) or an"
    )
    with pytest.raises(AdaptiveError, match=line):
        run_at(-5)
