"""Records of nights: whole or absent, whatever happens to the night that writes one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.base.artifacts import json_bytes
from tasks.base.errors import UserError
from tasks.operations.nightly.records import History
from tests.support.nights.made_nights import nights

WRITING = """
import sys
from datetime import datetime, timedelta
from pathlib import Path
from tasks.operations.nightly.records import History, Night
history, night = History(Path(sys.argv[1])), Night.read(Path(sys.argv[2]))
for number in range(100_000):
    began = (datetime.fromisoformat(night.began) + timedelta(minutes=number)).isoformat(timespec="microseconds")
    history.add(night.model_copy(update={"began": began}))
    print(number, flush=True)
"""


def test_nights_are_read_in_order_and_only_those_of_the_network(tmp_path: Path) -> None:
    history, (first, second, other) = History(tmp_path / "nights"), nights(3, seed=0)
    for one in (second, first, other.model_copy(update={"network": "another"})):
        history.add(one)
    assert history.nights("resnet18-digits", pytest.fail) == [first, second]


def test_a_night_that_is_killed_while_it_writes_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    (one,) = nights(1, seed=0)
    one.write(tmp_path / "night.json")
    words = [sys.executable, "-c", WRITING, str(tmp_path / "nights"), str(tmp_path / "night.json")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writing:
        assert writing.stdout is not None
        while int(writing.stdout.readline()) < 20:
            pass
        writing.kill()
        last = [int(line) for line in writing.stdout.read().split()]
    found = History(tmp_path / "nights").nights(one.network, pytest.fail)
    assert len(found) >= max([20, *last]) + 1


def test_a_damaged_record_is_left_out_and_told(tmp_path: Path) -> None:
    history, (first, second) = History(tmp_path / "nights"), nights(2, seed=0)
    history.add(first)
    damaged, told = history.add(second), list[str]()
    damaged.write_bytes(damaged.read_bytes()[:-100])
    assert history.nights(first.network, told.append) == [first]
    assert len(told) == 1
    assert str(damaged) in told[0]


def test_a_record_of_the_first_version_is_read_and_tells_no_settings(tmp_path: Path) -> None:
    (one,) = nights(1, seed=0)
    content = {name: value for name, value in one.to_json().items() if name != "settings"}
    (tmp_path / "20260101T020000000000Z.json").write_bytes(json_bytes({**content, "version": 1}))
    (found,) = History(tmp_path).nights(one.network, pytest.fail)
    assert found.settings is None
    assert found.devices == one.devices


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "nights").write_text("a file")
    with pytest.raises(UserError, match=r"cannot be written .*; the same command goes on"):
        History(tmp_path / "nights").add(nights(1, seed=0)[0])
