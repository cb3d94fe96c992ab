"""Two workers share a run on one PostgreSQL, and at each stage one of them is killed: what is worked again, and what is lost.

`python -m benchmarks.shared_runs` starts a PostgreSQL server (Debian's package), which has the locks of the run and MLflow, and
works the small run of the tests. A worker that comes to a stage is stopped there (SIGSTOP, by which it keeps its locks) until a
second worker is in the run, and then killed (SIGKILL). The other one finishes the stage, and is the next to be killed. Runs are
repeated with shorter delays, until each stage was met. At the end trained weights are compared with those of an undisturbed
run.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from flows.storage.sharing import RunLocks, run_locks
from tasks.base.artifacts import digest_of, read_lines
from tests.support.flows.tiny import TINY
from tests.support.postgres import Postgres, postgres, programs

LOOK_S = 0.02
LIMIT_S = 600.0
DELAYS_S = (1.0, 0.1, 0.0)
"""From the first sight of a worker at a stage until it is stopped, in each repetition: short stages are met without."""
WORDS = (*TINY, "finetune.checkpoint_every_s=0", "finetune.epochs=3")
REPORT = "report"
"""Not a folder of the store: whoever walks to the end writes it."""
TRAINED = ("base", "compile", "finetune")


class Met(NamedTuple):
    """A stage that a worker is at: title, key, and the worker's process."""

    title: str
    key: str
    pid: int


class Kill(NamedTuple):
    """A worker that was killed at a stage. worked_s: until then. finished: stages by then. taken_s: until another was at it."""

    title: str
    worked_s: float
    finished: int
    taken_s: float


class Watched:
    """A run in its output folder, and the processes that work on it."""

    def __init__(self, folder: Path, locks: str, tracking: str) -> None:
        self.output, self._folder = folder / "out", folder
        self.words = (f"locks='{locks}'", f"tracking.uri='{tracking}'", f"output_dir={self.output}")
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()

    def add(self, command: str = "run") -> subprocess.Popen[bytes]:
        """A further worker: the command line, with a Prefect server of its own."""
        log = self._folder / f"worker-{len(list(self._folder.glob('worker-*')))}.log"
        with log.open("wb") as stream:
            words = [sys.executable, "-m", "flows.cli", command, *WORDS, *self.words]
            process = subprocess.Popen(words, stdout=stream, stderr=stream, cwd=self._folder)
        self.processes.append(process)
        return process

    def finished(self) -> dict[str, int]:
        """TITLE/KEY of stages with the times of change of their results."""
        stages = self.output / "stages"
        files = [file for file in stages.rglob("result.json") if file.parent.suffix != ".partial"]
        return {str(file.parent.relative_to(stages)): file.stat().st_mtime_ns for file in files}

    @contextmanager
    def looked_at(self) -> Iterator[RunLocks]:
        """The locks, from outside of the run."""
        with run_locks(self.words[0].removeprefix("locks=").strip("'"), self.output, "looked at") as locks:
            yield locks

    def others(self, locks: RunLocks) -> int:
        """Workers in the run."""
        keys = [folder.name for folder in (self.output / "runs").glob("*")]
        return locks.others(keys[0]) if keys else 0

    def at_stage(self, locks: RunLocks, known: set[str]) -> Met | None:
        """A stage that is being worked, of those that are not known."""
        stages = self.output / "stages"
        for folder in stages.rglob("*.partial"):
            title, key = str(folder.parent.relative_to(stages)), folder.name.removesuffix(".partial")
            if title not in known and (pid := _holder(locks, title, key)):
                return Met(title, key, pid)
        return None

    def kill(self, pid: int) -> None:
        """kill -9; what the process started ends by itself."""
        children = psutil.Process(pid).children(recursive=True)
        (process,) = [one for one in self.processes if one.pid == pid]
        process.kill()
        process.wait()
        self.processes.remove(process)
        _, alive = psutil.wait_procs(children, timeout=LIMIT_S)
        assert alive == [], "children of a killed worker live on"


def main() -> None:
    """Print a row for each kill, and how the runs ended."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=len(DELAYS_S), help="repetitions at most")
    runs = arguments.parse_args().runs
    found = programs()
    if found is None:
        sys.exit("no PostgreSQL server: install Debian's package postgresql")
    folder = Path(tempfile.mkdtemp(prefix="shared-runs-"))
    try:
        with postgres(found) as server:
            root = str(Path(__file__).parents[1])
            os.environ |= {
                "PGPASSFILE": str(server.passwords), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"),
                "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).strip(os.pathsep),
            }  # fmt: skip
            (folder / "cache").mkdir()
            _measure(server, folder, DELAYS_S[:runs])
    finally:
        shutil.rmtree(folder)


def _measure(server: Postgres, folder: Path, delays_s: Sequence[float]) -> None:
    known: set[str] = set()
    titles: set[str] = set()
    print("| run | stage | worked before the kill, s | stages finished by then | taken over after, s |")
    print("|---|---|---|---|---|")
    locks = server.database("locks")
    for number, delay_s in enumerate(delays_s):
        run = Watched(folder / f"run-{number}", locks, server.database(f"mlflow-{number}"))
        try:
            for kill in _kill_at_stages(run, known, delay_s):
                known.add(kill.title)
                print(
                    f"| {number + 1} | {kill.title} | {kill.worked_s:.2f} | {kill.finished} | {kill.taken_s:.1f} |",
                    flush=True,
                )
            _tell(run)
            titles = {stage.rpartition("/")[0] for stage in run.finished()} | {REPORT}
        finally:
            for process in run.processes:
                process.kill()
        if titles <= known:
            break
    undisturbed = Watched(folder / "undisturbed", locks, server.database("mlflow-undisturbed"))
    assert undisturbed.add("finetune").wait(LIMIT_S) == 0
    same = _weights(run.output) == _weights(undisturbed.output)
    missed = ", ".join(sorted(titles - known)) or "none"
    print(f"killed at {len(known & titles)} of {len(titles)} stages; never at: {missed}")
    print(f"trained weights equal those of an undisturbed run, bit by bit: {same}")


def _kill_at_stages(run: Watched, known: set[str], delay_s: float) -> Iterator[Kill]:
    """Kill a worker at each stage that can be met, until the run has ended. known: stages that are left alone."""
    killed = set(known)
    run.add()
    run.add()
    _wait(lambda: (run.output / "runs").is_dir(), "a run that begins")
    with run.looked_at() as locks:
        until = time.monotonic() + LIMIT_S
        while not any(process.poll() is not None for process in run.processes):
            assert time.monotonic() < until, "nothing goes on"
            met = run.at_stage(locks, killed)
            if met:
                if (kill := _killed(run, locks, met, delay_s)) is not None:
                    killed.add(met.title)
                    yield kill
                until = time.monotonic() + LIMIT_S
            elif REPORT not in killed and _is_at_report(run):
                killed.add(REPORT)
                yield _killed_at_report(run, locks)
            time.sleep(LOOK_S)


def _killed(run: Watched, locks: RunLocks, met: Met, delay_s: float) -> Kill | None:
    """Kill the worker at a stage once another one is in the run; None: it has gone on before it was stopped."""
    began = time.monotonic()
    time.sleep(delay_s)
    with suppress(ProcessLookupError):
        os.kill(met.pid, signal.SIGSTOP)
    worked_s = time.monotonic() - began
    if _holder(locks, met.title, met.key) != met.pid:
        os.kill(met.pid, signal.SIGCONT)
        return None
    _wait(lambda: run.others(locks) > 1, "a second worker")
    before = run.finished()
    run.kill(met.pid)
    killed = time.monotonic()
    run.add()

    def is_taken() -> bool:
        return bool(_holder(locks, met.title, met.key)) or f"{met.title}/{met.key}" in run.finished()

    _wait(is_taken, f"another worker at {met.title}")
    taken_s = time.monotonic() - killed
    found = run.finished()
    assert all(found.get(stage) == changed for stage, changed in before.items()), "a finished stage was worked again"
    return Kill(met.title, worked_s, len(before), taken_s)


def _is_at_report(run: Watched) -> bool:
    """Whether the last stage is finished, and the report is not there."""
    return any(stage.startswith("export/") for stage in run.finished()) and not (run.output / "report.html").exists()


def _killed_at_report(run: Watched, locks: RunLocks) -> Kill:
    """Kill the worker that has been in the run for longest."""
    pid = run.processes[0].pid
    os.kill(pid, signal.SIGSTOP)
    _wait(lambda: run.others(locks) > 1, "a second worker")
    before = run.finished()
    run.kill(pid)
    killed = time.monotonic()
    run.add()
    _wait(lambda: (run.output / "report.html").exists(), "the report of another worker")
    return Kill(REPORT, 0.0, len(before), time.monotonic() - killed)


def _holder(locks: RunLocks, title: str, key: str) -> int | None:
    """The process at a stage."""
    holder = locks.holder(title, key)
    return int(holder.rpartition(":")[2]) if holder else None


def _wait(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until, f"waited for {what}"
        time.sleep(LOOK_S)


def _weights(output: Path) -> dict[str, str]:
    """Digests of trained weights, by stage and file; keys are equal in all folders."""
    stages = output / "stages"
    files = [file for name in TRAINED for file in sorted((stages / name).rglob("*.safetensors"))]
    return {str(file.relative_to(stages)): digest_of(file) for file in files}


def _tell(run: Watched) -> None:
    """How a run ended, and what is in its folder."""
    codes = [process.wait(LIMIT_S) for process in run.processes]
    finished = run.finished()
    titles = [stage.rpartition("/")[0] for stage in finished]
    left = [path.name for path in (run.output / "stages").rglob("*.*") if path.is_dir()]
    steps = [line["step"] for file in run.output.glob("stages/finetune/*/history.jsonl") for line in read_lines(file)]
    in_order = steps == list(range(1, len(steps) + 1))
    print(
        f"exit codes {codes}, {len(finished)} stages, {len(titles) - len(set(titles))} under two keys, "
        f"{len(left)} unfinished or damaged; {len(steps)} steps of fine-tuning, each once: {in_order}",
        flush=True,
    )


if __name__ == "__main__":
    main()
