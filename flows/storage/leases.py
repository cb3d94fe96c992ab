"""Locks at a URL: one holder at a time; the next one takes over when the holder stops reporting that it is alive.

    locks/NAME/000001.json      state of the first holder of NAME: who it is, and a counter that it raises while it lives

A holder creates the object of the next number on the condition that it does not exist, so only one of several candidates gets
the lock. The holder rewrites that object while it lives, and finally writes that the lock is free. A waiting machine checks
whether the object changes; after a lease without a change it considers the holder dead. This uses only the waiting machine's
clock: no two machines have to agree on the time.

A holder that slept longer than its lease, and then continues, holds the lock beside its successor. A lock therefore only saves
work, and no data depends on it: anything published at a URL is published once, whoever comes first.
"""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, ValidationError

from flows.machine import Locks
from flows.storage.objects import Objects
from tasks.base.errors import UserError

LOCKS = "locks"
LEASE_SECONDS = 60.0
BEATS = 3
"""Beats per lease, so that one late beat does no harm."""
POLL_SECONDS = 2.0
END = ".json"
NUMBERED = re.compile(r"[0-9]{6,}\.json")


class Holding(BaseModel):
    """A holder's state. beat: number of times it was written. lease_s: permitted silence [s]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    holder: str
    machine: str
    process: int
    lease_s: float
    beat: int = 0
    free: bool = False

    def content(self) -> bytes:
        """The stored form."""
        return self.model_dump_json().encode()


@dataclass(frozen=True, slots=True)
class LeaseLocks(Locks):
    """The locks at a URL. lease_s: of locks held from here [s]. poll_s: interval between checks while waiting [s]."""

    objects: Objects
    lease_s: float = LEASE_SECONDS
    poll_s: float = POLL_SECONDS

    @contextmanager
    def held(self, name: str, say: Callable[[str], None] = print) -> Iterator[int]:
        """Hold a lock until the block ends; waits while another holder has it. Later holders have higher numbers.

        say: is called once with the holder that it waits for. UserError if the storage cannot be reached.
        """
        number, own = self._taken(name, say)
        ends = threading.Event()
        beats = threading.Thread(target=self._beat, args=(name, number, own, ends), daemon=True)
        beats.start()
        try:
            yield number
        finally:
            ends.set()
            beats.join()
            with suppress(UserError):  # waiting machines take it after the lease
                self.objects.write(_object(name, number), own.model_copy(update={"free": True}).content())

    def pass_by(self, name: str, say: Callable[[str], None] = print) -> None:
        """Return once nobody holds a lock. Later holders take it after everything that was done here before."""
        number, content = self._last(name)
        found = _holding(content)
        if number and not (found and found.free):
            with self.held(name, say):
                return

    def is_latest(self, name: str, number: int) -> bool:
        """Whether nobody has taken a lock since the holder of this number, for example because it was considered dead."""
        return self._last(name)[0] == number

    def silent(self, names: Iterable[str], say: Callable[[str], None] = print) -> set[str]:
        """The locks without a living holder. If some lock may have one, this waits a lease, in which a living holder reports.

        say: is called with the waiting time.
        """
        seen = {name: self._last(name) for name in names}
        held = [_holding(content) for number, content in seen.values() if number]
        leases_s = [found.lease_s if found else self.lease_s for found in held if not (found and found.free)]
        if leases_s:
            say(f"waits {max(leases_s):.0f} s for a sign of life of whoever may work at {len(leases_s)} stages")
            time.sleep(max(leases_s))
        return {name for name, last in seen.items() if self._last(name) == last}

    def _taken(self, name: str, say: Callable[[str], None]) -> tuple[int, Holding]:
        own = Holding(
            holder=uuid4().hex, machine=socket.gethostname(), process=os.getpid(), lease_s=round(self.lease_s, 3)
        )
        seen, since, said = b"", time.monotonic(), False
        while True:
            number, content = self._last(name)
            found = _holding(content)
            if content != seen:
                seen, since = content, time.monotonic()
            lease_s = found.lease_s if found else self.lease_s
            is_free = number == 0 or (found is not None and found.free) or time.monotonic() - since > lease_s
            if is_free and self._is_made(name, number + 1, own):
                if self.is_latest(name, number + 1):
                    for earlier in range(max(1, number - 1), number + 1):
                        self.objects.remove(_object(name, earlier))
                    return number + 1, own
                # later holders came first and had already removed this number
                self.objects.remove(_object(name, number + 1))
            if found and not is_free and not said:
                say(f"waits for process {found.process} of {found.machine}, which works on it")
                said = True
            time.sleep(self.poll_s)

    def _last(self, name: str) -> tuple[int, bytes]:
        """The number of the latest holder, and its content; 0 if there was none."""
        names = (one.rpartition("/")[2] for one in self.objects.names(f"{LOCKS}/{name}"))
        number = max((int(one.removesuffix(END)) for one in names if NUMBERED.fullmatch(one)), default=0)
        return number, self.objects.read(_object(name, number)) or b"" if number else b""

    def _is_made(self, name: str, number: int, own: Holding) -> bool:
        """Whether the lock is held from here, including when the response was lost and the request repeated."""
        if self.objects.create(_object(name, number), own.content()):
            return True
        found = _holding(self.objects.read(_object(name, number)) or b"")
        return found is not None and found.holder == own.holder

    def _beat(self, name: str, number: int, own: Holding, ends: threading.Event) -> None:
        """Report repeatedly that the holder lives. If the storage is unreachable for too long, the lock is lost."""
        beat = 0
        while not ends.wait(self.lease_s / BEATS):
            beat += 1
            try:
                self.objects.write(_object(name, number), own.model_copy(update={"beat": beat}).content())
            except UserError:
                continue


def _object(name: str, number: int) -> str:
    return f"{LOCKS}/{name}/{number:06d}{END}"


def _holding(content: bytes) -> Holding | None:
    """The state in an object; None if it cannot be parsed."""
    try:
        return Holding.model_validate_json(content)
    except ValidationError:
        return None
