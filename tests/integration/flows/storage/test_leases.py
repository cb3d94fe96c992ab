"""Locks at a URL: one holder at a time. How a killed holder is followed: `test_shared_stages.py`."""

import time
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import pytest

from flows.storage.leases import LeaseLocks
from flows.storage.objects import Objects, open_objects
from tests.support.threads import all_at_once

TURNS = 4
WORKERS = 4


@pytest.mark.long_cases("ssh")
def test_what_is_done_under_a_lock_is_done_by_one_at_a_time(url: str) -> None:
    storage = open_objects(url)
    storage.write("count", b"0")

    def count(locks: LeaseLocks) -> None:
        for _ in range(TURNS):
            with locks.held("count", say=lambda line: None):
                before = int(locks.objects.read("count") or b"")
                time.sleep(0.01)
                locks.objects.write("count", str(before + 1).encode())

    all_at_once(*(partial(count, LeaseLocks(open_objects(url), poll_s=0.05)) for _ in range(WORKERS)))
    assert storage.read("count") == str(WORKERS * TURNS).encode()
    assert storage.names("locks") == [f"locks/count/{WORKERS * TURNS:06d}.json"], "earlier holders are forgotten"


@pytest.mark.few("file")
def test_a_number_that_later_holders_have_forgotten_is_no_lock(url: str) -> None:
    storage, held = open_objects(url), ExitStack()
    others = LeaseLocks(storage, poll_s=0.05)
    with others.held("x"):
        pass

    class Late:
        """Two others come between the look at the lock and the try to take it; the second one stays."""

        waits = True

        def create(self, name: str, content: bytes) -> bool:
            if self.waits:
                self.waits = False
                with others.held("x") as second:
                    assert second == 2
                assert held.enter_context(others.held("x")) == 3
            return storage.create(name, content)

        def __getattr__(self, name: str) -> Any:
            return getattr(storage, name)

    late = LeaseLocks(cast(Objects, Late()), poll_s=0.05)
    with late.held("x", say=lambda line: held.close()) as number:
        assert number == 4


def test_a_lock_whose_holder_failed_is_free_at_once(bucket: str) -> None:
    locks = LeaseLocks(open_objects(bucket), lease_s=600.0)
    with pytest.raises(ZeroDivisionError), locks.held("x"):
        _ = 1 / 0
    with locks.held("x") as number:
        assert number == 2
