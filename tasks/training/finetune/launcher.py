"""The launcher of a training: starts torchrun, or a single rank, as a child process, and follows its progress.

It knows the GPUs of this node and how many processes they fit, and reports in one line why the child ended.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from tasks.base.artifacts import digest_of, write_bytes
from tasks.base.errors import UserError
from tasks.base.processes import end
from tasks.base.progress import Bar, Progress
from tasks.evaluation.subnets.images import pick_device
from tasks.training.finetune import checkpoint
from tasks.training.finetune.checkpoint import Tail, rewind
from tasks.training.finetune.job import JOB_FILE, LOG_FILE, TORCHRUN, Job, RankError
from tasks.training.finetune.memory import PlanTeller
from tasks.training.finetune.ranks import LOOPBACK, MeetingPlace, Phase, Watchdog, hosted, interface_of, meeting_place
from tasks.training.finetune.settings import TrainSettings


def gpus(wanted: str) -> int:
    """The number of GPUs on which ranks compute; 0 if they compute on the CPU."""
    return 0 if pick_device(wanted).type == "cpu" else torch.cuda.device_count()


def fitting_processes(settings: TrainSettings, gpus: int) -> int:
    """The processes of this node: the wanted number, or, if there are fewer GPUs, the most that split the batch evenly."""
    wanted = settings.processes
    if not 0 < gpus < wanted or settings.nodes > 1:
        return wanted
    return next(count for count in range(gpus, 0, -1) if settings.batch_size % (settings.micro_batch * count) == 0)


ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}
"""The variables that torchrun would set for a single rank."""
POLL_S = 0.1
GRACE_S = 10.0
MEETING_S = 600
"""Time that a node waits for the others."""
LEAST_ANSWER_S = 60
"""Least timeout for an answer of the rendezvous store, long enough for a busy machine."""
LAST_CALL_S = 30
"""Time that enough nodes wait for the missing ones."""
NOT_MET = r"Rendezvous(Timeout|Connection|Closed|GracefulExit)Error"
PLACE_LOST = r"RendezvousConnectionError"
LEAST_MICRO_BATCH = 2
MOST_SAID = 300


def launch(job: Job, name: str, progress: Progress) -> Job:
    """Train `job` to its end, from its checkpoint if one exists; returns the job with its final settings.

    If memory runs out, training goes on with micro-batches of half the size, and a message says so. Raises UserError (one line)
    when a rank dies more often than allowed; the next call goes on from the last checkpoint.
    """
    job.folder.chmod(0o700)
    checkpoint.mend(job.checkpoint, name, progress)
    if job.settings.nodes == 1 and _is_finished(job):  # with several nodes, another one may still need this checkpoint
        return job
    if not job.checkpoint.exists():
        progress.say(f"{name}: {job.plan}")
    assert not job.is_live or (job.settings.processes, job.settings.nodes) == (1, 1), (
        "checked where objects got their names"
    )
    fewer = fitting_processes(job.settings, gpus(job.settings.device))
    if fewer != job.settings.processes:
        progress.say(
            f"{name}: each process has a GPU of its own: {fewer} instead of {job.settings.processes}, with the same losses"
        )
        job = job.with_settings(processes=fewer)
    left = job.settings.restarts if job.settings.nodes > 1 else 0
    while True:
        done = checkpoint.finished_steps(job.checkpoint)
        code, silent = _run(job, name, progress)
        if _is_finished(job):
            _clear(job)
            return job
        if left and _has_lost_its_place(job, done):
            left -= 1
            progress.say(
                f"{name}: nobody is at {job.settings.rendezvous} any more: waits up to {MEETING_S} s, and goes on from "
                f"step {checkpoint.finished_steps(job.checkpoint)}"
            )
            continue
        errors, micro_batch = job.errors(), job.settings.micro_batch
        smaller = _smaller_micro_batch(job, errors)
        if smaller is None:
            raise _failure(job, name, code, errors, silent)
        job = job.with_settings(micro_batch=smaller)
        progress.say(
            f"{name}: out of memory with micro-batches of {micro_batch} images; goes on with {smaller}, whose "
            f"BatchNorm statistics are noisier (micro_batch={smaller} says so from the start)"
        )


def _is_finished(job: Job) -> bool:
    return checkpoint.finished_steps(job.checkpoint) == job.total_steps


def _has_lost_its_place(job: Job, done: int) -> bool:
    """Whether nodes that had met and trained beyond step `done` lost the node that hosts the rendezvous."""
    log = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    return checkpoint.finished_steps(job.checkpoint) > done and re.search(PLACE_LOST, log) is not None


def _smaller_micro_batch(job: Job, errors: Sequence[RankError]) -> int | None:
    """The micro-batch to try after these errors; None if it cannot shrink. Several nodes would have to agree on it."""
    size = job.settings.micro_batch
    is_memory = bool(errors) and errors[0]["kind"] != "user" and any(error["kind"] == "memory" for error in errors)
    if not is_memory or job.settings.nodes > 1 or size % 2 or size // 2 < LEAST_MICRO_BATCH:
        return None
    return size // 2


def _run(job: Job, name: str, progress: Progress) -> tuple[int, Mapping[int, str]]:
    """Run the ranks once; returns the exit code, and the ranks that were killed because they did not answer."""
    _clear(job)
    write_bytes(job.folder / JOB_FILE, job.model_dump_json(indent=1).encode())
    done = checkpoint.finished_steps(job.checkpoint)
    rewind(job.history, done)
    rendezvous = job.settings.rendezvous
    place, timeout = None if rendezvous is None else meeting_place(rendezvous), timedelta(seconds=_answer_s())
    with progress.bar(name, job.total_steps, done) as bar, _meeting(job) as meeting, hosted(place, timeout):
        watchdog = Watchdog(job, meeting, name, progress.say)
        plans = PlanTeller(job.folder, name, progress)
        with _ranks(job, meeting, place) as process:
            lines = Tail(job.history, done)
            while process.poll() is None:
                plans.look(done)
                done = _report(job, lines.new(), done, bar, progress, plans)
                if not isinstance(process, OwnRank):
                    watchdog.look(process.pid)
                time.sleep(POLL_S)
            plans.look(done)
            done = _report(job, lines.new(), done, bar, progress, plans)
        bar.advance(checkpoint.finished_steps(job.checkpoint) - done if _is_finished(job) else 0)
    return process.returncode, watchdog.ended


def _clear(job: Job) -> None:
    """Remove the files of ranks that failed or were killed, including unfinished ones of safetensors (`.tmp…`)."""
    for pattern in ("error-rank*.json", "memory-*.json", ".*.tmp", ".tmp*"):
        for file in job.folder.glob(pattern):
            file.unlink()
    for folder in job.folder.glob("rendezvous-*"):
        shutil.rmtree(folder)


def _report(job: Job, lines: list[dict[str, Any]], done: int, bar: Bar, progress: Progress, plans: PlanTeller) -> int:
    """Report the steps after `done`; returns the last one reported. Phases that ended early have skipped some steps."""
    for line in lines:
        bar.advance(line["step"] - done)
        done = line["step"]
        bar.note(f"{_phase_at(job, done)}loss {line['loss']:.3f}")
        progress.metrics({key: float(value) for key, value in line.items() if key != "step"}, done)
        plans.measured(line)
    return done


def _phase_at(job: Job, step: int) -> str:
    """The phase that a step belongs to, as a prefix for the progress bar; empty if there is only one phase."""
    phases = job.phases
    now = next(phase for phase in phases if step <= phase.last_step)
    exit_ = "" if now.part is None else f" {job.exits[now.part]}"
    return f"{now.strategy}{exit_}, " if len(phases) > 1 else ""


def _environment(settings: TrainSettings, interface: str) -> dict[str, str]:
    """Share the cores among the ranks; idle threads sleep, since spinning ones slow a shared machine down a lot."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // settings.processes)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONSAFEPATH": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "GLOO_SOCKET_IFNAME": interface,
        **({} if settings.nodes == 1 else {"NCCL_SOCKET_IFNAME": f"={interface}"}),
    }


@contextmanager
def _meeting(job: Job) -> Iterator[Path]:
    """A private folder for ranks and launcher, removed on leaving.

    Ranks meet through files there: torchrun's own TCP store would listen on every network interface, without a password, and
    its rendezvous unpickles whatever it finds there. The folder also takes torchrun's logs, which would stay in the temporary
    directory.
    """
    with tempfile.TemporaryDirectory(prefix="rendezvous-", dir=job.folder) as meeting:
        yield Path(meeting)


def _is_alone(settings: TrainSettings) -> bool:
    """Whether there is one rank, never restarted: then torchrun, which takes seconds to start, is not needed."""
    return settings.nodes == settings.processes == 1 and settings.restarts == 0


class OwnRank:
    """The single rank as a thread of this process, for samples and functions that no other process has."""

    def __init__(self, job: Job, meeting: Path) -> None:
        self.returncode = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._train, args=(job, meeting), name="training", daemon=True)
        self._thread.start()

    def _train(self, job: Job, meeting: Path) -> None:
        from tasks.training.finetune.worker import attempt

        before = {name: os.environ.get(name) for name in ALONE}
        os.environ.update(ALONE)
        try:
            attempt(job, meeting, self._move, 0)
        except (Exception, SystemExit):  # noqa: BLE001 - its line is in the error file
            self.returncode = 1
            with (job.folder / LOG_FILE).open("a", encoding="utf-8") as log:
                traceback.print_exc(file=log)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def _move(self, phase: Phase, step: int) -> None:
        """Called at each move of the rank: ends it once the run is interrupted."""
        if self._stopped.is_set():
            raise InterruptedError

    def poll(self) -> int | None:
        """The exit code; None while the rank trains."""
        return None if self._thread.is_alive() else self.returncode

    def end(self) -> None:
        """Stop the rank at its next move."""
        self._stopped.set()
        self._thread.join()


@contextmanager
def _ranks(job: Job, meeting: Path, place: MeetingPlace | None) -> Iterator[subprocess.Popen[bytes] | OwnRank]:
    """torchrun and its workers, or the single worker; always terminated on leaving."""
    if job.is_live:
        (job.folder / LOG_FILE).touch()
        own = OwnRank(job, meeting)
        try:
            yield own
        finally:
            own.end()
        return
    process = _start(job, meeting, place)
    try:
        yield process
    finally:
        end(process, GRACE_S)


def _start(job: Job, meeting: Path, place: MeetingPlace | None) -> subprocess.Popen[bytes]:
    settings = job.settings
    own = LOOPBACK if place is None else place.own
    environment = _environment(settings, interface_of(own))
    if _is_alone(settings):
        command, environment = [sys.executable], {**environment, **ALONE}
    else:
        command = _torchrun(settings, meeting, own)
    worker = ["-m", "tasks.training.finetune.worker", str(job.folder / JOB_FILE), str(meeting)]
    with (job.folder / LOG_FILE).open("wb") as log:
        return subprocess.Popen(
            [*command, *worker],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _torchrun(settings: TrainSettings, meeting: Path, own: str) -> list[str]:
    """The command line without the worker's part. own: this machine's address on the route to the others."""
    nodes = f"{settings.fewest_nodes}:{settings.nodes}"
    command = [sys.executable, "-m", TORCHRUN, "--max-restarts", str(settings.restarts)]
    command += ["--nnodes", nodes, "--nproc-per-node", str(settings.processes), "--rdzv-backend", "c10d"]
    command += ["--local-addr", own, "--log-dir", str(meeting)]
    if settings.rendezvous is None:
        command += ["--rdzv-endpoint", str(meeting / "torchrun"), "--rdzv-conf", "store_type=file"]
        command += ["--rdzv-id", meeting.name]
    else:
        times = {"join_timeout": MEETING_S, "last_call_timeout": LAST_CALL_S, "read_timeout": _answer_s()}
        said = ",".join(["is_host=false", *(f"{name}={seconds}" for name, seconds in times.items())])
        command += ["--rdzv-endpoint", settings.rendezvous, "--rdzv-conf", said]
        command += ["--rdzv-id", digest_of(settings.model_dump(mode="json"))]
    return command


def _answer_s() -> int:
    return max(LEAST_ANSWER_S, MEETING_S)


def _failure(job: Job, name: str, code: int, errors: Sequence[RankError], silent: Mapping[int, str]) -> UserError:
    """The error to raise: the user's error, else out of memory, a killed rank, or the first error of any rank.

    silent: ranks that were killed because they did not answer.
    """
    log = (job.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    exits = {
        int(rank): int(exit_code)
        for rank, exit_code in re.findall(r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)", log)
    }
    exits |= {0: code} if _is_alone(job.settings) else {}
    killed = {rank: -exit_code for rank, exit_code in exits.items() if exit_code < 0 and -exit_code != signal.SIGTERM}
    again = (
        f"see {job.folder / LOG_FILE}; the same command goes on from step "
        f"{checkpoint.finished_steps(job.checkpoint)} of {job.total_steps}"
    )
    if errors and errors[0]["kind"] == "user":
        return UserError(name, errors[0]["line"])
    short = next((error for error in errors if error["kind"] == "memory"), None)
    if short is not None:
        size = job.settings.micro_batch
        line = (
            f"rank {short['rank']} ran out of memory with micro-batches of {size} images: {short['line'][:MOST_SAID]}"
        )
        return UserError(name, line, next_step=f"set a smaller micro_batch; {again}")
    if killed:
        rank, number = next(iter(killed.items()))
        why = silent.get(rank) or f"was killed by {signal.Signals(number).name}"
        return UserError(name, f"rank {rank} {why}", next_step=again)
    if errors:
        return UserError(name, f"rank {errors[0]['rank']} failed: {errors[0]['line'][:MOST_SAID]}", next_step=again)
    if re.search(NOT_MET, log):
        line = f"the {job.settings.nodes} nodes did not meet at {job.settings.rendezvous}"
        return UserError(name, line, next_step=f"start the same command on each; {again}")
    return UserError(name, f"the workers ended with exit code {code}", next_step=again)
