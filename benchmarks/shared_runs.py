"""Workers that share a run on one PostgreSQL are killed at each stage that can be met: what is worked again, and who goes on.

`python -m benchmarks.shared_runs` starts a PostgreSQL server (Debian's package) and works the small run of the tests. Two
workers are in the run at any time. One at a stage is killed (kill -9), at each stage once; a new one takes its place.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from flows.sharing import RunLocks, run_locks
from tests.flows.tiny import TINY
from tests.postgres import postgres, programs

LOOK_S = 0.02
LIMIT_S = 900.0
WORDS = (*TINY, "finetune.checkpoint_every_s=0", "finetune.epochs=3")


class Watched:
    """A run in its output folder, and the processes that work on it."""

    def __init__(self, folder: Path, database: str) -> None:
        self.output, self._database, self._folder = folder / "out", database, folder
        self.processes: list[subprocess.Popen[bytes]] = []

    def add(self) -> None:
        """A further worker: the command line, with a Prefect server of its own."""
        words = [
            f"locks='{self._database}'",
            f"tracking.uri=sqlite:///{self._folder}/mlflow.db",
            f"output_dir={self.output}",
        ]
        log = self._folder / f"worker-{len(list(self._folder.glob('worker-*')))}.log"
        with log.open("wb") as stream:
            command = [sys.executable, "-m", "flows.cli", "run", *WORDS, *words]
            self.processes.append(subprocess.Popen(command, stdout=stream, stderr=stream))

    def finished(self) -> dict[str, int]:
        """Stages with the times of change of their results."""
        stages = self.output / "stages"
        files = stages.rglob("result.json")
        return {str(file.parent.relative_to(stages)): file.stat().st_mtime_ns for file in files}

    @contextmanager
    def looked_at(self) -> Iterator[RunLocks]:
        """The locks, from outside of the run."""
        with run_locks(self._database, self.output, "looked at") as locks:
            yield locks

    def at_stage(self, locks: RunLocks, unwanted: set[str]) -> tuple[str, int] | None:
        """A stage that is being worked, and its process, while another worker is in the run."""
        keys = [folder.name for folder in (self.output / "runs").glob("*")]
        if not keys or locks.others(keys[0]) < 2:
            return None
        for folder in (self.output / "stages").rglob("*.partial"):
            title = str(folder.parent.relative_to(self.output / "stages"))
            holder = None if title in unwanted else locks.holder(title, folder.name.removesuffix(".partial"))
            if holder:
                return title, int(holder.rpartition(":")[2])
        return None

    def kill(self, pid: int) -> None:
        """kill -9; what the process started ends by itself."""
        children = psutil.Process(pid).children(recursive=True)
        (process,) = [one for one in self.processes if one.pid == pid]
        process.kill()
        process.wait()
        self.processes.remove(process)
        _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
        assert alive == []


def main() -> None:
    """Print a row for each kill, and whether the run ended well."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--most-kills", type=int, default=20)
    most = arguments.parse_args().most_kills
    found = programs()
    if found is None:
        sys.exit("no PostgreSQL server: install Debian's package postgresql")
    folder = Path(tempfile.mkdtemp(prefix="shared-runs-"))
    try:
        with postgres(found) as server:
            os.environ["PGPASSFILE"] = str(server.passwords)
            os.environ |= {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
            (folder / "cache").mkdir()
            run = Watched(folder, server.database("locks"))
            try:
                killed = _kill_at_stages(run, most)
                _tell(run, killed)
            finally:
                for process in run.processes:
                    process.kill()
    finally:
        shutil.rmtree(folder)


def _kill_at_stages(run: Watched, most: int) -> list[str]:
    """Titles of the stages at which a worker was killed, until the run has ended."""
    killed: list[str] = []
    run.add()
    run.add()
    with run.looked_at() as locks:
        until = time.monotonic() + LIMIT_S
        while not any(process.poll() is not None for process in run.processes):
            assert time.monotonic() < until, "nothing went on"
            met = run.at_stage(locks, set(killed)) if len(killed) < most else None
            if met:
                title, pid = met
                before = run.finished()
                run.kill(pid)
                run.add()
                began = time.monotonic()
                _wait_until_taken(run, locks, title)
                print(f"| {title} | {len(before)} | {time.monotonic() - began:.1f} |", flush=True)
                assert all(run.finished().get(stage) == changed for stage, changed in before.items()), "worked again"
                killed.append(title)
                until = time.monotonic() + LIMIT_S
            time.sleep(LOOK_S)
    return killed


def _wait_until_taken(run: Watched, locks: RunLocks, title: str) -> None:
    """Until another worker is at the stage, or has finished it."""
    while not any(stage.startswith(f"{title}/") for stage in run.finished()):
        folders = (run.output / "stages" / title).glob("*.partial")
        if any(locks.holder(title, folder.name.removesuffix(".partial")) for folder in folders):
            return
        time.sleep(LOOK_S)


def _tell(run: Watched, killed: list[str]) -> None:
    codes = [process.wait(LIMIT_S) for process in run.processes]
    finished = run.finished()
    titles = [stage.rpartition("/")[0] for stage in finished]
    left = [path.name for path in (run.output / "stages").rglob("*.*") if path.is_dir()]
    twice = len(titles) - len(set(titles))
    print(f"kills {len(killed)}, exit codes {codes}, stages {len(finished)}, under two keys {twice}, left {left}")


if __name__ == "__main__":
    main()
