"""Locks at a URL: one holder at a time, and the next one where a holder stops to say that it lives.

    locks/NAME/000001.json      what the first holder of NAME says: who it is, and a number that it raises while it lives

A holder makes the next number's object on the condition that there is none yet, so of several that try, one holds the lock. It
writes that object again while it lives, and at the end writes that the lock is free. Whoever waits looks whether that object
changes; after a lease without a change its holder counts as dead. Only the waiting machine's own clock counts for that: no two
machines have to agree on the time.

A holder that slept longer than its lease, and goes on, holds the lock beside its successor. So a lock saves work, and no data
depends on it: what is published at a URL is published once, whoever is first.
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

from flows.storage.objects import Objects
from tasks.errors import UserError

LOCKS = "locks"
LEASE_SECONDS = 60.0
BEATS = 3
"""In a lease, so that one that is late harms nothing."""
POLL_SECONDS = 2.0
END = ".json"
NUMBERED = re.compile(r"[0-9]{6,}\.json")


class Holding(BaseModel):
    """What a holder says. beat: how often it has said so. lease_s: for how long it may be silent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    holder: str
    machine: str
    process: int
    lease_s: float
    beat: int = 0
    free: bool = False

    def content(self) -> bytes:
        """As it is stored."""
        return self.model_dump_json().encode()


@dataclass(frozen=True, slots=True)
class Locks:
    """The locks at a URL. lease_s: of those that are held from here [s]. poll_s: between the looks of whoever waits [s]."""

    objects: Objects
    lease_s: float = LEASE_SECONDS
    poll_s: float = POLL_SECONDS

    @contextmanager
    def held(self, name: str, say: Callable[[str], None] = print) -> Iterator[int]:
        """Hold a lock until the block ends; waits while another one does. Its number: those of later holders are higher.

        say: hears once whom it waits for. UserError: the storage is not reached.
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
            with suppress(UserError):  # whoever waits takes it after the lease
                self.objects.write(_object(name, number), own.model_copy(update={"free": True}).content())

    def pass_by(self, name: str, say: Callable[[str], None] = print) -> None:
        """Return once nobody holds a lock. Whoever takes it later does so after what was done here before."""
        number, content = self._last(name)
        found = _holding(content)
        if number and not (found and found.free):
            with self.held(name, say):
                return

    def is_latest(self, name: str, number: int) -> bool:
        """Whether nobody has taken a lock since the holder of this number, as where that one counted as dead."""
        return self._last(name)[0] == number

    def silent(self, names: Iterable[str], say: Callable[[str], None] = print) -> set[str]:
        """Those of some locks that nobody holds who lives. Where somebody may, this takes a lease, in which a holder says so.

        say: hears how long it takes.
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
                    self._forget(name, number)
                    return number + 1, own
                self.objects.remove(
                    _object(name, number + 1)
                )  # later holders came first, and had forgotten this number
            if found and not is_free and not said:
                say(f"waits for process {found.process} of {found.machine}, which works on it")
                said = True
            time.sleep(self.poll_s)

    def _last(self, name: str) -> tuple[int, bytes]:
        """The number of the latest holder, and what it says; 0: there was none."""
        names = (one.rpartition("/")[2] for one in self.objects.names(f"{LOCKS}/{name}"))
        number = max((int(one.removesuffix(END)) for one in names if NUMBERED.fullmatch(one)), default=0)
        return number, self.objects.read(_object(name, number)) or b"" if number else b""

    def _is_made(self, name: str, number: int, own: Holding) -> bool:
        """Whether the lock is held from here; also where the answer to the request was lost, and it was tried again."""
        if self.objects.create(_object(name, number), own.content()):
            return True
        found = _holding(self.objects.read(_object(name, number)) or b"")
        return found is not None and found.holder == own.holder

    def _forget(self, name: str, number: int) -> None:
        """Remove what earlier holders said."""
        for earlier in range(max(1, number - 1), number + 1):
            self.objects.remove(_object(name, earlier))

    def _beat(self, name: str, number: int, own: Holding, ends: threading.Event) -> None:
        """Say again and again that the holder lives. Where the storage is away too long, the lock is lost."""
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
    """What an object says; None: nothing that can be read."""
    try:
        return Holding.model_validate_json(content)
    except ValidationError:
        return None
