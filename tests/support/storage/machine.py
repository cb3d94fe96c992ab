"""A machine that shares an output folder at a URL with others, and the stage that they work."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from flows.storage.leases import LeaseLocks
from flows.storage.mirror import Mirror
from flows.storage.objects import open_objects
from tasks.base.artifacts import StageFolder, Store, write_json

STAGE = ("profile/board", "0123456789abcdef")
NAME = "stages/profile/board/0123456789abcdef"


class Machine:
    """A machine with an output folder of its own, and one at a URL. works: how often it has worked the stage."""

    def __init__(self, url: str, folder: Path, lease_s: float = 60.0) -> None:
        self.mirror = Mirror(open_objects(url), folder)
        self.mirror.locks = LeaseLocks(self.mirror.objects, lease_s, poll_s=0.1)
        self.said: list[str] = []
        self.hears: Callable[[str], None] = self.said.append
        self.works = 0

    @contextmanager
    def turn(self, *, anew: bool = False) -> Iterator[StageFolder]:
        folder = Store(self.mirror.folder / "stages").open_stage(*STAGE, anew=anew)
        with self.mirror.turn(folder, self.hears):
            yield folder

    def work(self, *, seed: int = 0, anew: bool = False, then: Callable[[], object] = bool) -> Path:
        """The stage's folder, worked here if it is not complete anywhere. then: called when it is complete here."""
        with self.turn(anew=anew) as folder:
            if not folder.complete:
                self.works += 1
                fill(folder.path, seed)
                folder.publish({"accuracy": 0.5, "seed": seed})
                then()
        return folder.final


def fill(folder: Path, seed: int = 0) -> None:
    """Files of a stage, two with the same content."""
    weights = np.random.default_rng(seed).standard_normal(50_000).astype(np.float32)
    (folder / "supernet").mkdir(exist_ok=True)
    save_file({"weight": weights}, folder / "supernet" / "weights.safetensors")
    save_file({"weight": weights}, folder / "same.safetensors")
    write_json(folder / "front.json", {"winners": [seed, 2, 3]})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


LEARNER = """
import sys, time
from pathlib import Path
from tasks.base.artifacts import append_line, write_bytes
from tests.support.storage.machine import Machine
machine = Machine(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
machine.mirror.bring_s = 0.1
with machine.turn() as folder:
    for step in range(10_000):
        append_line(folder.path / "history.jsonl", {"step": step})
        write_bytes(folder.path / "checkpoint.safetensors", str(step).encode())
        time.sleep(0.02)
"""


@contextmanager
def learning(url: str, folder: Path, lease_s: float) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that works the stage and has brought some of it to the URL. The end of the block kills it by `kill -9`."""
    command = [sys.executable, "-c", LEARNER, url, str(folder), str(lease_s)]
    with subprocess.Popen(command) as process:
        try:
            while not open_objects(url).read(f"unfinished/{NAME}/1.json"):
                assert process.poll() is None
                time.sleep(0.05)
            yield process
        finally:
            process.kill()
