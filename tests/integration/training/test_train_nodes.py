"""Trainings on several nodes: files that one lost, nodes that do not meet, and one that is killed."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tasks.base.errors import UserError
from tasks.base.progress import Silent
from tasks.training.finetune import launcher
from tasks.training.finetune.checkpoint import finished_steps
from tests.support.agents.agent_processes import soon
from tests.support.finetune.listener import Listener
from tests.support.finetune.processes import trainings_below
from tests.support.finetune.short_training import STEPS, alone, assert_same, losses, train
from tests.support.ports import free_port


class Stopper(Silent):
    """Interrupts the pipeline in the middle."""

    def metrics(self, values: dict[str, float], step: int) -> None:
        if step >= STEPS // 2:
            raise InterruptedError


def train_nodes(folders: list[Path], progress: list[Silent]) -> list[Exception]:
    """One rank on each of two nodes; what they raised."""
    port = free_port()
    errors: list[Exception] = []

    def node(number: int) -> None:
        try:
            place = f"127.0.0.1:{port}"
            train(folders[number], progress[number], number, nodes=2, rendezvous=place, average=0.9)
        except (UserError, InterruptedError) as error:
            errors.append(error)

    threads = [threading.Thread(target=node, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.long
def test_nodes_train_as_ranks_of_one_and_one_that_lost_its_files_gets_those_of_the_others(
    undisturbed: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    errors = train_nodes(folders, [Stopper(), Silent()])
    assert sorted(type(error).__name__ for error in errors) == ["InterruptedError", "UserError"]
    done = finished_steps(folders[0] / "checkpoint.safetensors")
    assert STEPS // 2 - 1 <= done < STEPS
    shutil.rmtree(folders[1])
    assert not train_nodes(folders, [Silent(), Silent()])
    for folder, first in zip(folders, (1, done + 1), strict=True):
        assert_same(folder, undisturbed)
        assert losses(folder) == {step: loss for step, loss in losses(undisturbed).items() if step >= first}


@pytest.mark.long
def test_a_node_that_stays_alone_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "MEETING_S", 1)
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=rf"the 2 nodes did not meet at {place}; start the same command on each"):
        train(tmp_path / "run", nodes=2, rendezvous=place)


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("255.255.255.255:29400", r"no way to '255\.255\.255\.255' \(.+\); allowed: HOST:PORT of the first node"),
        ("127.1:29400", r"'127\.1' is 127\.0\.0\.1 here, which no other machine reaches; allowed: HOST:PORT"),
    ],
)
def test_a_meeting_place_that_cannot_be_one_is_named(place: str, line: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=line):
        train(tmp_path / "run", nodes=2, rendezvous=place, insecure=True)


NODE = """
import sys
from pathlib import Path
from tests.support.finetune.short_training import train
from tests.integration.training.test_train_nodes import ready_and_met, two_nodes

folder, port, epochs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
ready_and_met(folder, port)
train(folder, first_core=1, **two_nodes(port, epochs))
"""
LIMIT_S = 300


def two_nodes(port: int, epochs: int = 1) -> dict[str, Any]:
    """Of a training that goes on with one of two nodes."""
    place = {"nodes": 2, "least_nodes": 1, "restarts": 2, "rendezvous": f"127.0.0.1:{port}"}
    return {**place, "precision": "float64", "epochs": epochs}


def ready_file(folder: Path) -> Path:
    """Beside the folder of a node: its process has imported everything."""
    return folder.with_name(f"{folder.name}.ready")


def ready_and_met(folder: Path, port: int) -> None:
    """Tell that a node is ready, and wait until the first one, which has the meeting place, listens there."""
    ready_file(folder).touch()
    assert soon(lambda: port in listening_ports(), LIMIT_S), "nobody is at the meeting place"


def listening_ports() -> set[int]:
    """Of this machine; nobody is asked at them."""
    return {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}


def start_node(folder: Path, port: int, epochs: int = 1) -> "subprocess.Popen[bytes]":
    """The second node, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", NODE, str(folder), str(port), str(epochs)], env=environment)


class NodeKiller(Listener):
    """Kills another node, and notes before where all of them listen."""

    def __init__(self, node: subprocess.Popen[bytes]) -> None:
        super().__init__()
        self.node, self.listening = node, set[str]()
        self.left = [psutil.Process(node.pid)]

    def metrics(self, values: dict[str, float], step: int) -> None:
        super().metrics(values, step)
        if step >= STEPS // 3 and self.node.poll() is None:
            self.left = psutil.Process(self.node.pid).children(recursive=True)
            for process in trainings_below(psutil.Process()):
                sockets = process.net_connections("tcp")
                self.listening |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
            self.node.kill()
            self.node.wait()


@pytest.mark.long
def test_a_node_that_is_killed_is_not_waited_for_and_nothing_listens_beyond_the_place_of_meeting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that is left goes on from its last checkpoint; torchrun and the rank of the other end with their launcher."""
    monkeypatch.setattr(launcher, "LAST_CALL_S", 20)
    port, folders = free_port(), [tmp_path / "a", tmp_path / "b"]
    other = start_node(folders[1], port)
    killer = NodeKiller(other)
    try:
        assert soon(lambda: ready_file(folders[1]).exists() or other.poll() is not None, LIMIT_S)
        assert other.poll() is None, "the other node has ended"
        train(folders[0], killer, **two_nodes(port))
    finally:
        other.kill()
        other.wait()
    assert other.returncode == -signal.SIGKILL
    assert STEPS > finished_steps(folders[1] / "checkpoint.safetensors") >= STEPS // 3 - 1
    _, alive = psutil.wait_procs(killer.left, timeout=60)
    assert alive == []
    assert killer.listening == {"127.0.0.1"}
    assert killer.steps == list(range(1, STEPS + 1))
    expected = alone(tmp_path / "alone", precision="float64")
    assert losses(folders[0]) == pytest.approx(expected, rel=1e-6)


ENDLESS = 1000
"""Epochs; the training is interrupted once a node has come back."""


class Companion(Silent):
    """Starts the other node, which has an older checkpoint, while this one goes on alone; ends once both train together."""

    def __init__(self, own: Path, other: Path, port: int) -> None:
        self.own, self.other, self.port = own, other, port
        self.lost_at = self.back_at = 0
        self.node: subprocess.Popen[bytes] | None = None

    def metrics(self, values: dict[str, float], step: int) -> None:
        if not self.lost_at:
            if (self.own / "checkpoint.safetensors").exists():  # a step is told before its checkpoint is written
                self.other.mkdir()
                for name in ("checkpoint.safetensors", "history.jsonl"):
                    shutil.copyfile(self.own / name, self.other / name)
                self.lost_at = max(losses(self.other))
        elif self.node is None and step > self.lost_at + 2:
            self.back_at, self.node = step, start_node(self.other, self.port, ENDLESS)
        elif self.node is not None and len(self.together()) > 2:
            raise InterruptedError

    def together(self) -> dict[int, float]:
        """Losses of the other node since it came back."""
        return {step: loss for step, loss in losses(self.other).items() if step > self.lost_at}


@pytest.mark.long
def test_a_node_that_comes_back_joins_those_that_went_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From their checkpoint, which is newer than its own."""
    monkeypatch.setattr(launcher, "LAST_CALL_S", 1)
    port, folders = free_port(), [tmp_path / "a", tmp_path / "b"]
    companion = Companion(folders[0], folders[1], port)
    try:
        with pytest.raises(InterruptedError):
            train(folders[0], companion, **two_nodes(port, ENDLESS))
    finally:
        if companion.node is not None:
            companion.node.kill()
            companion.node.wait()
    own, together = losses(folders[0]), companion.together()
    assert min(together) > companion.back_at > companion.lost_at
    shared = own.keys() & together.keys()
    assert len(shared) >= 2
    assert {step: own[step] for step in shared} == {step: together[step] for step in shared}
