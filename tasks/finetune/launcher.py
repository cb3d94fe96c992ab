"""Start torchrun as a child process, follow its progress, and say in one line why it ended."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tasks.artifacts import read_json, read_lines, write_bytes
from tasks.errors import UserError
from tasks.finetune import checkpoint
from tasks.finetune.job import JOB_FILE, LOG_FILE, Job
from tasks.processes import end
from tasks.progress import Bar, Progress

POLL_S = 0.1
GRACE_S = 10.0


def launch(job: Job, name: str, progress: Progress) -> Path:
    """Train `job` to its end, from its checkpoint if there is one; the final checkpoint's path.

    Raises UserError (one line) when a rank dies; the next call goes on from the last checkpoint.
    """
    job.folder.chmod(0o700)
    done = _rewind(job)
    if done == job.total_steps:
        return job.checkpoint
    write_bytes(job.folder / JOB_FILE, job.model_dump_json(indent=1).encode())
    with progress.bar(name, job.total_steps, done) as bar, _torchrun(job) as process:
        lines = _Tail(job.history)
        while process.poll() is None:
            _report(lines.new(), bar, progress)
            time.sleep(POLL_S)
        _report(lines.new(), bar, progress)
    if checkpoint.finished_steps(job.checkpoint) != job.total_steps:
        raise _failure(job, name, process.returncode)
    return job.checkpoint


def _rewind(job: Job) -> int:
    """Forget what a killed run left after its checkpoint; the number of steps done."""
    done = checkpoint.finished_steps(job.checkpoint)
    kept = [json.dumps(line) + "\n" for line in read_lines(job.history) if line["step"] <= done]
    write_bytes(job.history, "".join(kept).encode())
    for file in job.folder.glob("error-rank*.json"):
        file.unlink()
    for folder in job.folder.glob("rendezvous-*"):
        shutil.rmtree(folder)
    return done


class _Tail:
    """New whole JSON lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size

    def new(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as stream:
            stream.seek(self._offset)
            whole = stream.read().rpartition(b"\n")[0]
        self._offset += len(whole) + 1 if whole else 0
        return [json.loads(line) for line in whole.splitlines()]


def _report(lines: list[dict[str, Any]], bar: Bar, progress: Progress) -> None:
    for line in lines:
        bar.advance()
        bar.note(f"loss {line['loss']:.3f}")
        progress.metrics({key: float(value) for key, value in line.items() if key != "step"}, line["step"])


def _loopback() -> str:
    """Name of the network interface of 127.0.0.1, so that gloo listens nowhere else."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address == "127.0.0.1" for address in addresses)
    )


def _environment(processes: int) -> dict[str, str]:
    """Share the cores among the ranks; idle threads sleep, since spinning ones slow a shared machine down a lot."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "GLOO_SOCKET_IFNAME": _loopback(),
        "PYTHONSAFEPATH": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


@contextmanager
def _torchrun(job: Job) -> Iterator[subprocess.Popen[bytes]]:
    """torchrun and its workers; ended, whatever happens, on leaving.

    They meet through files in a private folder: torchrun's own TCP store would listen on every network interface,
    without a password, and its rendezvous unpickles what it finds there.
    """
    with tempfile.TemporaryDirectory(prefix="rendezvous-", dir=job.folder) as meeting:
        process = _start(job, Path(meeting))
        try:
            yield process
        finally:
            end(process, GRACE_S)


def _start(job: Job, meeting: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += ["--nnodes", "1", "--nproc-per-node", str(job.settings.processes), "--local-addr", "127.0.0.1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", str(meeting / "torchrun")]
    command += ["--rdzv-conf", "store_type=file", "--rdzv-id", meeting.name]
    command += ["-m", "tasks.finetune.worker", str(job.folder / JOB_FILE), str(meeting / "ranks")]
    with (job.folder / LOG_FILE).open("wb") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(job.settings.processes),
            start_new_session=True,
        )


def _failure(job: Job, name: str, code: int) -> UserError:
    """Why the workers ended: a killed rank, else the user's error, else the first error of any rank."""
    log = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    exits = {
        int(rank): int(exit_code)
        for rank, exit_code in re.findall(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)", log)
    }
    killed = {rank: -exit_code for rank, exit_code in exits.items() if exit_code < 0 and -exit_code != signal.SIGTERM}
    errors = sorted(
        (read_json(file) for file in job.folder.glob("error-rank*.json")),
        key=lambda error: (not error["user"], error["time_s"]),
    )
    again = (
        f"see {job.folder / LOG_FILE}; the same command goes on from step "
        f"{checkpoint.finished_steps(job.checkpoint)} of {job.total_steps}"
    )
    if killed:
        rank, number = next(iter(killed.items()))
        return UserError(name, f"rank {rank} was killed by {signal.Signals(number).name}", next_step=again)
    if errors and errors[0]["user"]:
        return UserError(name, errors[0]["line"])
    if errors:
        return UserError(name, f"rank {errors[0]['rank']} failed: {errors[0]['line'][:300]}", next_step=again)
    return UserError(name, f"the workers ended with exit code {code}", next_step=again)
