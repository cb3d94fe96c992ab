"""Crashes of the process: a restarted service continues without the SubNets that have crashed it.

A process that ends by its own fault, such as a segmentation fault inside of a runtime, raises a signal on which the
interpreter's fault handler writes the stack of each thread; frames name the SubNets that threads work for. A process that is
killed from outside, or loses its power, writes nothing.
"""

import faulthandler
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

from pydantic import Field

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import replace_file
from adaptive_runtime.base.message_files import FileMessage
from adaptive_runtime.bundle.bundles import BundleFormat
from adaptive_runtime.pool import STACK_FRAME, Variant
from profiling_agents.messages import Digest, Message

LOG = logging.getLogger("adaptive_runtime.server")
STACKS_FILE, LAST_STACKS_FILE = "crash.txt", "crash.1.txt"
"""Stacks of the serving process, empty as long as it lives; stacks of the latest process that has crashed."""
CRASHED_FILE = "crashed.json"
VERSION = 1
CRASHES_AMONG_OTHERS = 2
"""Crashes until a SubNet is quarantined that was not the only candidate for the cause."""
SIGNAL = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
THREADS = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
CURRENT = "Current thread"
SubNetFiles = tuple[str, BundleFormat]
"""The digest of a SubNet, and the format of its files."""


class CrashedSubNet(Message):
    """A SubNet that ran when the process crashed.

    alone: it ran in the thread that crashed, or no other SubNet ran. signal: of the latest crash, in words. crashes: number so
    far.
    """

    subnet: str
    form: BundleFormat
    signal: str
    alone: bool
    crashes: int = Field(ge=1)

    @property
    def is_out(self) -> bool:
        """Whether it is quarantined."""
        return self.alone or self.crashes >= CRASHES_AMONG_OTHERS

    @property
    def files(self) -> SubNetFiles:
        """Digest and format that ran."""
        return self.subnet, self.form


class CrashedSubNets(FileMessage):
    """Crashed SubNets of one bundle, by the digest of its manifest."""

    WHERE: ClassVar[str] = CRASHED_FILE
    NEXT_STEP: ClassVar[str] = "which SubNets have crashed is forgotten"
    READ_VERSION: ClassVar[int | None] = VERSION
    CONTENT: ClassVar[str] = "crashes"

    version: int = VERSION
    bundle: Digest
    subnets: tuple[CrashedSubNet, ...] = ()

    @classmethod
    def read(cls, file: Path, bundle: str) -> "CrashedSubNets":
        """Read from a file; empty if the file is missing, damaged or of another bundle. Damage is logged."""
        try:
            found = cls.from_file(file) if file.exists() else None
        except AdaptiveError as error:
            LOG.warning("%s", error)
            found = None
        return found if found is not None and found.bundle == bundle else cls(bundle=bundle)

    def after(self, crash: "Crash") -> "CrashedSubNets":
        """The record after one more crash."""
        known = {one.files: one for one in self.subnets}
        alone = len(crash.running) == 1
        for subnet, form in crash.running:
            before = known.get((subnet, form))
            known[subnet, form] = CrashedSubNet(
                subnet=subnet,
                form=form,
                signal=crash.signal,
                alone=alone or (before is not None and before.alone),
                crashes=1 if before is None else before.crashes + 1,
            )
        return CrashedSubNets(bundle=self.bundle, subnets=tuple(known.values()))


class Crash(NamedTuple):
    """Cause of a crash from the stacks of the process. signal: in words. running: candidates for the cause."""

    signal: str
    running: tuple[SubNetFiles, ...]

    @classmethod
    def read(cls, file: Path, bundle: str) -> "Crash | None":
        """Read from a file whose first line is a bundle's digest.

        None: the file is missing, has no stacks, or is of another bundle.
        """
        try:
            served, _, stacks = file.read_text(encoding="ascii", errors="replace").partition("\n")
        except OSError:
            return None
        return cls.of(stacks) if stacks and served == bundle else None

    @classmethod
    def of(cls, stacks: str) -> "Crash":
        """The crash from the stack of the crashed thread.

        If that thread belongs to a runtime and is unknown to the interpreter, all threads are candidates.
        """
        threads = THREADS.split(stacks)
        current = [one for one in threads if one.startswith(CURRENT)]
        frames = [STACK_FRAME.search(one) for one in current or threads]
        signal = SIGNAL.search(stacks)
        running = dict.fromkeys(cast(SubNetFiles, frame.groups()) for frame in frames if frame is not None)
        return cls("signal unknown" if signal is None else signal[1], tuple(running))


@contextmanager
def crashes_recorded(folder: Path, bundle: str) -> Iterator[Mapping[Variant, str]]:
    """SubNets that have crashed a process before, each with one line; until the end of the block, a crash is recorded.

    folder: for the records. bundle: digest of the manifest.
    """
    out = _learnt(folder, bundle)
    file = folder / STACKS_FILE
    with ExitStack() as stack:
        stack.callback(_remove, file)
        try:
            stream = stack.enter_context(file.open("wb", buffering=0))
            stream.write(f"{bundle}\n".encode())
        except OSError as error:
            LOG.warning("'%s' cannot be written (%s): a SubNet that crashes is not noticed", file, error.strerror)
            stack.close()
        else:
            faulthandler.enable(stream, all_threads=True)
            stack.callback(faulthandler.disable)
        yield out


def _learnt(folder: Path, bundle: str) -> dict[Variant, str]:
    """The quarantined SubNets, updated with the crash of the previous process, if it has crashed."""
    file, stacks = folder / CRASHED_FILE, folder / STACKS_FILE
    known = CrashedSubNets.read(file, bundle)
    crash = Crash.read(stacks, bundle)
    if crash is not None:
        known = known.after(crash)
        try:
            replace_file(file, known.to_json())
            os.replace(stacks, folder / LAST_STACKS_FILE)
        except OSError as error:
            LOG.warning("'%s' cannot be written (%s): a restart would forget the crash", file, error.strerror)
    out = [one for one in known.subnets if one.is_out]
    if crash is not None and not {one.files for one in out}.intersection(crash.running):
        running = " or ".join(f"SubNet {subnet} in {form}" for subnet, form in crash.running)
        LOG.warning("the service crashed (%s) while %s ran", crash.signal, running or "no SubNet")
    again = f"to try it again, remove '{file}' and restart the service"
    return {
        Variant(one.subnet, form=one.form): f"the service crashed while it ran ({one.signal}); {again}" for one in out
    }


def _remove(file: Path) -> None:
    """Remove a file, if the system allows it."""
    with suppress(OSError):
        file.unlink()
