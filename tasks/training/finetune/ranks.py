"""Signs of life of the ranks of one machine: the launcher ends a rank that gives none.

Each rank has a few numbers in a file in shared memory. A thread increments them while the process runs at all, and the main
thread writes its position there. No clock is shared: the launcher measures how long it sees no change while it runs itself.

Rendezvous of ranks and nodes: addresses of machines, and stores that listen on a single address.

The rendezvous of several nodes, as this machine reaches it.

Stores by which nodes and ranks find each other. Unlike torch's own, they listen on one address, not on all interfaces.
"""

import errno
import ipaddress
import mmap
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import psutil
from torch import distributed

from tasks.base.errors import UserError
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job

PULSE_FILE = "pulse"
TICK_S = 0.25
LOOK_S = 0.5
STILL_S = 1.0
"""A process whose count stands still for longer does not run; other ranks wait for it, and are not at fault."""
GAP_S = 5.0
"""A launcher that looks less often than this was not running, e.g. on a suspended machine."""
OUTSIDE_S = 120.0
"""Time in which a rank must import its libraries and give its first sign, and end after its last one."""
UNKILLABLE_S = 10.0
STATES = {"stopped": "stopped", "tracing-stop": "in a debugger", "disk-sleep": "waiting for a disk"}


class Phase(IntEnum):
    """The phases of a rank, in the order of one step."""

    STARTING = 0
    READING = 1
    TRAINING = 2
    WRITING = 3
    ENDING = 4

    def described(self, step: int) -> str:
        """The phase in words."""
        return {
            Phase.STARTING: "before its first step",
            Phase.READING: f"reading the images of step {step}",
            Phase.TRAINING: f"in step {step}",
            Phase.WRITING: f"writing the checkpoint of step {step}",
            Phase.ENDING: "after its last step",
        }[self]


Move = Callable[[Phase, int], None]
"""A callback for the phase of a rank, and its step."""


def unseen(phase: Phase, step: int) -> None:
    """Do nothing: nobody watches the rank."""


class Sign(NamedTuple):
    """A rank's sign of life: its process, ticks of its thread, and the position of its main thread (`part` of a phase)."""

    pid: int
    ticks: int
    step: int
    phase: int
    part: int

    @property
    def place(self) -> tuple[int, int, int]:
        """A tuple that grows while a rank makes progress."""
        return self.step, self.phase, self.part


WORDS = len(Sign._fields)


def _shared(folder: Path) -> memoryview:
    with (folder / PULSE_FILE).open("r+b") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0)).cast("Q")


class Pulse:
    """A rank's side."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        self._numbers = _shared(folder)[local_rank * WORDS : (local_rank + 1) * WORDS]
        for index, number in enumerate(Sign(os.getpid(), 0, 0, Phase.STARTING, 0)):
            self._numbers[index] = number
        threading.Thread(target=self._tick, name="pulse", daemon=True).start()

    def _tick(self) -> None:
        while True:
            self._numbers[1] += 1
            time.sleep(TICK_S)

    def move(self, phase: Phase, step: int) -> None:
        """Record that the main thread begins the next part of `step`; cheap enough for every forward pass."""
        is_same = self._numbers[2] == step and self._numbers[3] == phase
        self._numbers[2], self._numbers[3], self._numbers[4] = step, phase, self._numbers[4] + 1 if is_same else 0


@dataclass(slots=True)
class _LastSeen:
    """Times when a rank's thread and its main thread were last seen to progress [s]."""

    sign: Sign
    alive_s: float
    moved_s: float


class Silences:
    """Times for which ranks have given no sign, on the launcher's clock while the launcher ran."""

    def __init__(self, signs: list[Sign], now_s: float, *, is_alone: bool) -> None:
        self._seen = [_LastSeen(sign, now_s, now_s) for sign in signs]
        self._looked_s = now_s
        self._is_alone = is_alone
        """Whether these ranks wait for no other machine."""

    def look(self, signs: list[Sign], now_s: float) -> list[float]:
        """Seconds for each rank since its process ran; or, if it is behind and all processes run, since it made progress."""
        was_away = now_s - self._looked_s > GAP_S
        self._looked_s = now_s
        for seen, sign in zip(self._seen, signs, strict=True):
            if was_away or sign[:2] != seen.sign[:2]:
                seen.alive_s = now_s
            if was_away or sign.pid != seen.sign.pid or sign.place != seen.sign.place:
                seen.moved_s = now_s
            seen.sign = sign
        if any(now_s - seen.alive_s > STILL_S for seen in self._seen):
            for seen in self._seen:
                seen.moved_s = now_s
        last = min(sign.place for sign in signs)
        behind = [seen.sign.place == last and self._has_to_move(seen.sign) for seen in self._seen]
        return [
            now_s - (min(seen.alive_s, seen.moved_s) if is_behind else seen.alive_s)
            for seen, is_behind in zip(self._seen, behind, strict=True)
        ]

    def _has_to_move(self, sign: Sign) -> bool:
        """Whether the main thread is in a phase that neither takes long nor waits for other machines."""
        phases = (Phase.READING, Phase.WRITING, *((Phase.TRAINING,) if self._is_alone else ()))
        return sign.phase in phases


class Watchdog:
    """The launcher's side: reports a rank that gives no sign, and kills it. torchrun then restarts all ranks, or gives up."""

    def __init__(self, job: Job, meeting: Path, name: str, say: Callable[[str], None]) -> None:
        self._job, self._name, self._say = job, name, say
        self.ended: dict[int, str] = {}
        """Killed ranks, with their last phases."""
        count = job.settings.processes
        (meeting / PULSE_FILE).write_bytes(bytes(8 * WORDS * count))
        self._numbers = _shared(meeting)
        self._silences = Silences(self._signs(), time.monotonic(), is_alone=job.settings.nodes == 1)
        self._remarked: set[int] = set()
        self._killed_s: dict[int, float] = {}
        self._looked_s = time.monotonic()

    def _signs(self) -> list[Sign]:
        numbers = self._numbers.tolist()
        return [Sign._make(numbers[start : start + WORDS]) for start in range(0, len(numbers), WORDS)]

    def look(self, started: int) -> None:
        """Check the ranks of process `started`, torchrun or the single rank. UserError for a rank that cannot be killed."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        signs, settings = self._signs(), self._job.settings
        for local_rank, seconds in enumerate(self._silences.look(signs, now_s)):
            if seconds < min(settings.silence_remark_s, settings.silence_end_s):
                self._remarked.discard(local_rank)
            elif process := _rank(started, local_rank):
                try:
                    self._judge(local_rank, signs[local_rank], seconds, process)
                except psutil.Error:
                    continue  # it has ended meanwhile

    def _judge(self, local_rank: int, sign: Sign, seconds: float, process: psutil.Process) -> None:
        settings = self._job.settings
        seconds = min(seconds, time.time() - process.create_time())
        phase = Phase(sign.phase if sign.pid == process.pid else Phase.STARTING)
        least = OUTSIDE_S if sign.pid != process.pid or phase == Phase.ENDING else 0
        environment = process.environ()
        if "RANK" not in environment:  # an ending process has no environment left
            raise psutil.NoSuchProcess(process.pid)
        rank = int(environment["RANK"])
        state = STATES.get(process.status())
        what = f"{f'{state}, ' if state else ''}{phase.described(sign.step)}"
        if process.pid in self._killed_s:
            self._refuse_to_wait(rank, what, process.pid)
        elif seconds >= max(settings.silence_end_s, least):
            self.ended[rank] = f"did not answer for {settings.silence_end_s:g} s ({what}) and was ended"
            self._killed_s[process.pid] = time.monotonic()
            process.kill()
            restarts = int(environment["TORCHELASTIC_RESTART_COUNT"])
            if restarts < settings.restarts:
                done = checkpoint.finished_steps(self._job.checkpoint)
                self._say(
                    f"{self._name}: rank {rank} {self.ended[rank]}; all ranks go on from step {done} "
                    f"(restart {restarts + 1} of {settings.restarts})"
                )
        elif seconds >= max(settings.silence_remark_s, least) and local_rank not in self._remarked:
            self._remarked.add(local_rank)
            self._say(
                f"{self._name}: rank {rank} has not answered for {seconds:.0f} s ({what}); it is ended after "
                f"{settings.silence_end_s:g} s (silence_end_s)"
            )

    def _refuse_to_wait(self, rank: int, what: str, pid: int) -> None:
        """UserError if a killed process does not end in time: it waits in the kernel, mostly for a disk."""
        if time.monotonic() - self._killed_s[pid] > UNKILLABLE_S:
            raise UserError(
                self._name,
                f"rank {rank} does not answer ({what}), and process {pid} cannot be ended",
                next_step="look after the disk that it waits for; the same command goes on from the last checkpoint",
            )


def _rank(started: int, local_rank: int) -> psutil.Process | None:
    """The process of a rank; None if it does not run."""
    try:
        process = psutil.Process(started)
        for one in (process, *process.children(recursive=True)):
            environment = one.environ() if "tasks.training.finetune.worker" in one.cmdline() else {}
            if environment.get("LOCAL_RANK") == str(local_rank):
                return one
    except psutil.Error:
        return None
    return None


LOOPBACK = "127.0.0.1"
ALLOWED_HOST = "HOST:PORT of the first node, as the others reach it"


class MeetingPlace(NamedTuple):
    """host, port: address of the rendezvous. own: this machine's address on the route to it."""

    host: str
    port: int
    own: str

    @property
    def is_here(self) -> bool:
        """Whether this machine hosts the rendezvous."""
        return self.host == self.own


def meeting_place(rendezvous: str) -> MeetingPlace:
    """The rendezvous of a setting HOST:PORT. UserError if this machine, or no other machine, can reach it."""
    name, _, port = rendezvous.rpartition(":")
    name = name.strip("[]")
    try:
        family, kind, _, _, there = socket.getaddrinfo(name, int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            own = str(probe.getsockname()[0])
    except OSError as error:
        raise UserError("rendezvous", f"no way to '{name}' ({error.strerror})", allowed=ALLOWED_HOST) from error
    if ipaddress.ip_address(own).is_loopback and name not in (own, "localhost"):
        raise UserError("rendezvous", f"'{name}' is {own} here, which no other machine reaches", allowed=ALLOWED_HOST)
    return MeetingPlace(str(there[0]), int(port), own)


def interface_of(own: str) -> str:
    """Name of the network interface with this address; ranks listen only there."""
    return next(
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(address.address.partition("%")[0] == own for address in addresses)
    )


def listening(host: str, port: int, timeout: timedelta) -> distributed.TCPStore:
    """A store that listens on an address of this machine while it is referenced. OSError: the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family)
    return distributed.TCPStore(
        host, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener.detach()
    )


def of_ranks(host: str, port: int, rank: int, timeout: timedelta) -> distributed.TCPStore:
    """The store of the ranks of several nodes; rank 0 hosts it."""
    if rank == 0:
        return listening(host, port, timeout)
    return distributed.TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


@contextmanager
def hosted(place: MeetingPlace | None, timeout: timedelta) -> Iterator[None]:
    """Host the rendezvous store until the block ends, if the rendezvous is here and no other node on this machine hosts it."""
    if place is None or not place.is_here:
        yield
        return
    try:
        store = listening(place.host, place.port, timeout)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        yield
        return
    try:
        yield
    finally:
        del store
