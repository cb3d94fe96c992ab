"""Locks by a real PostgreSQL server: of processes that are killed, sessions that are lost, folders that are shared."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from flows.machine import only_run
from flows.storage.cleaning import FolderCleaner
from flows.storage.sharing import StageElsewhere, database_turn, run_locks
from flows.storage.sharing import database as session
from flows.storage.sharing.database import LockSession
from tasks.base.artifacts import Store
from tasks.base.errors import UserError
from tests.support.postgres import Postgres
from tests.support.threads import all_at_once

WITHIN_S = 120.0
HOLDER = """
import sys
from flows.storage.sharing.database import LockSession
with LockSession(sys.argv[1], "locks") as held:
    print(held.take("stage"), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> str:
    """The address of a database for these tests."""
    return postgres.database("locks")


@pytest.fixture
def mine(database: str) -> Iterator[LockSession]:
    """A session of this process."""
    with LockSession(database, "locks") as opened:
        yield opened


def soon(look: Callable[[], bool]) -> None:
    """Until something is so."""
    until = time.monotonic() + WITHIN_S
    while not look():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_what_a_killed_process_had_locked_is_free(database: str, mine: LockSession) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLDER, database], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        assert not mine.take("stage")
        assert [name.rpartition(":")[2] for name in mine.holders("stage")] == [str(holder.pid)]
        assert mine.take("another stage")
        holder.kill()
    soon(lambda: mine.take("stage"))
    assert mine.holders("stage") == []


def test_a_lock_that_is_given_back_is_free(database: str, mine: LockSession) -> None:
    with LockSession(database, "locks") as other:
        assert other.take("a")
        assert not mine.take("a")
        other.release("a")
        assert mine.take("a")
        assert not other.take("a")


def test_a_session_that_is_lost_is_noticed_and_asks_for_nothing_again(
    postgres: Postgres, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BEAT_S", 0.05)
    with LockSession(database, "locks") as lost:
        assert lost.take("b")
        mine = f"application_name LIKE '%' || chr(58) || '{os.getpid()}'"
        assert postgres.ask("postgres", f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}")
        soon(lambda: lost.is_lost)
        with LockSession(database, "locks") as other:
            soon(lambda: other.take("b"))  # the server tells the end of a session before it frees what that had
            with pytest.raises(UserError, match=r"locks: the connection was lost \(.*\); .*; the same command goes on"):
                lost.check()
            with pytest.raises(UserError, match="the connection was lost"):
                lost.take("c")
            lost.release("b")
            assert other.take("c")


def test_machines_take_turns_by_the_database(database: str) -> None:
    order: list[str] = []

    def use(name: str) -> None:
        with database_turn(database, "locks", "board"):
            order.append(f"{name} in")
            time.sleep(0.3)
            order.append(f"{name} out")

    all_at_once(*(partial(use, name) for name in "ab"))
    assert [line.split()[1] for line in order] == ["in", "out", "in", "out"]


def test_a_stage_has_one_worker_and_a_run_several(database: str, tmp_path: Path) -> None:
    output, elsewhere = tmp_path / "out", tmp_path / "mounted"
    with ExitStack() as stack:
        one = stack.enter_context(run_locks(database, output, "run"))
        assert one.others("run") == 0
        elsewhere.symlink_to(output)
        two = stack.enter_context(run_locks(database, elsewhere, "run"))
        assert two.place == one.place
        assert one.others("run") == 1
        assert one.others("another run") == 0
        with one.stage("finetune", "k"):
            with (
                pytest.raises(StageElsewhere, match=rf"finetune: .*:{os.getpid()} is at it"),
                two.stage("finetune", "k"),
            ):
                pass
            with two.stage("finetune", "another key"), two.stage("enumerate", "k"):
                assert two.holder("finetune", "k") == one.holder("enumerate", "k")
        assert two.holder("finetune", "k") is None
        with two.stage("finetune", "k"):
            assert two.holder("finetune", "k") is None, "its own is not another's"


def test_cleaning_leaves_what_other_workers_are_at(database: str, tmp_path: Path) -> None:
    output, said, (one, two) = tmp_path / "out", list[str](), (16 * letter for letter in "ab")
    with run_locks(database, output, "run") as worker:
        for key in (one, two):
            Store(output / "stages").open_stage("finetune", key)
        with worker.stage("finetune", one):
            with pytest.raises(
                UserError, match=r"locks: null, and workers share .*; write locks=ADDRESS as their runs"
            ):
                FolderCleaner(output, 0.0).remove(said.append)
            found = FolderCleaner(output, 0.0, locks=database).remove(said.append)
    assert {item.name.rpartition("/")[2]: item.state for item in found} == {
        f"{one}.partial": "at work",
        f"{two}.partial": "removed",
    }
    assert [path.name for path in (output / "stages" / "finetune").iterdir()] == [f"{one}.partial"]
    assert re.fullmatch(rf"finetune: .*:{os.getpid()} is at it", said[0])


def test_folders_that_are_not_shared_are_not_locked_together(database: str, tmp_path: Path) -> None:
    with (
        run_locks(database, tmp_path / "a", "run") as one,
        run_locks(database, tmp_path / "b", "run") as two,
        one.stage("finetune", "k"),
        two.stage("finetune", "k"),
    ):
        assert one.others("run") == 0


def test_a_folder_is_shared_by_all_of_its_runs_or_by_none(database: str, tmp_path: Path) -> None:
    with (
        run_locks(database, tmp_path, "run"),
        pytest.raises(UserError, match="in use by another run"),
        only_run(tmp_path),
    ):
        pass
    with (
        run_locks(None, tmp_path, "run"),
        pytest.raises(UserError, match="in use by another run"),
        run_locks(database, tmp_path, "run"),
    ):
        pass


def test_a_database_that_cannot_be_used_is_one_line_without_its_password(postgres: Postgres) -> None:
    wrong = postgres.url("postgres", password=True).replace(postgres.password, "wrong-password")
    with pytest.raises(UserError, match=r"locks: PostgreSQL cannot be used \(.*authentication failed") as refused:
        LockSession(wrong, "locks")
    assert "wrong-password" not in str(refused.value)
    dead = re.sub(r":\d+/", ":9/", postgres.url("postgres"))
    with pytest.raises(UserError, match=r"locks: PostgreSQL cannot be used \(.*refused.*PGPASSFILE"):
        LockSession(dead, "locks")
