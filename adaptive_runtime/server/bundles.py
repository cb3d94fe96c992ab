"""Bundles as served models: crashed SubNets are left out, and SubNets found by a search on the device join.

A process that ends by its own fault, such as a segmentation fault inside of a runtime, raises a signal on which the
interpreter's fault handler writes the stack of each thread; frames name the SubNets that threads work for. The
restarted service continues without them. A process that is killed from outside, or loses its power, writes nothing.

Legend: N samples, C channels, H height, W width.
"""

import faulthandler
import hashlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

from pydantic import Field

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import FileMessage, read_bytes, replace_file
from adaptive_runtime.base.weight_options import WeightOptions
from adaptive_runtime.bundle.bundles import BUNDLE_FILE, FOUND_FILE, BundleFormat, OpenBundle
from adaptive_runtime.bundle.bundles.manifest import AGAIN
from adaptive_runtime.model.deployed import DeployedModel
from adaptive_runtime.model.opening import LoadOptions, loaded_with
from adaptive_runtime.model.options import AdaptingOptions
from adaptive_runtime.pool import STACK_FRAME, Variant
from adaptive_runtime.server.answering import CurrentModel
from adaptive_runtime.server.options import VERSION_DIGITS, BundleOptions
from adaptive_runtime.server.protocol import InferenceFormat
from adaptive_runtime.server.recent import ChoiceMemory
from adaptive_runtime.server.served import AdaptedLoad, LoadSource, LoadWatch, ServedModel
from adaptive_runtime.server.splits import placed_devices
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


LOOK_S = 1.0
Stamp = tuple[int, int, int]


class FoundFile:
    """The result file of a search in its folder. AdaptiveError: the folder does not exist."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise AdaptiveError(f"--also '{folder}'", "is no folder", next_step="name that of a search on this device")
        self.folder = folder
        self._stamp: Stamp | None = None

    def is_new(self) -> bool:
        """Whether the file changed since the last call; at the first call, whether it exists."""
        try:
            found = os.stat(self.folder / FOUND_FILE)
        except OSError:
            return False
        before, self._stamp = self._stamp, (found.st_ino, found.st_mtime_ns, found.st_size)
        return before != self._stamp


@contextmanager
def joined_by(found: FoundFile, current: CurrentModel, load: Callable[[], DeployedModel]) -> Iterator[None]:
    """Until the end of the block, replace the current model with one that includes a search's new SubNets.

    load: loads that model, beside the current one. An error is logged in one line, and the current model goes on.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if not found.is_new():
                continue
            try:
                current.replace(load())
            except AdaptiveError as error:
                LOG.warning("%s; what serves goes on", error)
            else:
                LOG.warning("SubNets of '%s' have joined", found.folder)

    thread = threading.Thread(target=watch, name="joining", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def bundle_served(options: BundleOptions) -> AbstractContextManager[ServedModel]:
    """The model, which starts with the remembered last choice if that still works.

    AdaptiveError: an invalid bundle, raised at once; later, a bundle that cannot be loaded.
    """
    OpenBundle.open(options.bundle, options.key_file)
    return _served(options)


@contextmanager
def _served(options: BundleOptions) -> Iterator[ServedModel]:
    memory = None if options.state is None else ChoiceMemory(options.state, _digest(options.bundle, options.format))
    first = None if memory is None else memory.read()
    with (
        _crashes(options) as crashed,
        _current(options, first, crashed) as current,
        _load_of(current, options) as source,
    ):
        yield ServedModel(
            infer=current.infer,
            subnets=lambda: tuple(dict.fromkeys(one.digest for one in current.model.pool.whole_variants)),
            state=lambda: current.model.state,
            works=lambda: bool(current.model.subnets),
            load=source,
            format=InferenceFormat.of(current.model),
            version=_digest(options.bundle)[:VERSION_DIGITS],
            memory=memory,
            devices=placed_devices(lambda: current.model),
        )


def _crashes(options: BundleOptions) -> AbstractContextManager[Mapping[Variant, str]]:
    """SubNets that have crashed, if the service remembers them."""
    return nullcontext({}) if options.state is None else crashes_recorded(options.state, _digest(options.bundle))


@contextmanager
def _current(options: BundleOptions, first: Variant | None, crashed: Mapping[Variant, str]) -> Iterator[CurrentModel]:
    """The model, which is replaced when a search has found SubNets. A model with adapting weights is not replaced."""
    found = None if options.also is None else FoundFile(options.also)
    also = None if found is None or not found.is_new() else found.folder
    if found is not None and also is None:
        LOG.warning("'%s' has no %s yet: its SubNets join when a search has written it", found.folder, FOUND_FILE)
    current = CurrentModel(_loaded(options, also, first=first, taken_out=crashed))
    with ExitStack() as stack:
        stack.callback(lambda: current.model.close())
        if found is not None and options.weights is None:
            folder = found.folder
            stack.enter_context(joined_by(found, current, lambda: _loaded(options, folder, after=current.model)))
        yield current


def _loaded(
    options: BundleOptions,
    also: Path | None,
    first: Variant | None = None,
    taken_out: Mapping[Variant, str] | None = None,
    after: DeployedModel | None = None,
) -> DeployedModel:
    """A loaded model; a model with `after` continues the record of that model's decisions."""
    decisions = options.decisions if after is None else None
    weights = None
    if options.weights is not None:
        weights = WeightOptions(method=options.weights, state=options.state, align=not options.unaligned)
    adapting = AdaptingOptions(decisions=decisions, sensors_root=options.sensors_root, hit_rate=options.hit_rate)
    asked = LoadOptions(
        folder=options.bundle,
        budget_ms=options.budget_ms,
        memory_mib=options.memory_mib,
        format=options.format,
        adapts=adapting if options.adapts or options.policy is not None else False,
        policy=options.policy,
        first=first,
        key_file=options.key_file,
        cache=options.cache,
        also=also,
        weights=weights,
        taken_out=taken_out or {},
        after=after,
        devices=options.devices,
    )
    return loaded_with(asked)


@contextmanager
def _load_of(current: CurrentModel, options: BundleOptions) -> Iterator[LoadSource]:
    """The source of the load, until the end of the block."""
    if current.model.adaptation is not None:
        yield AdaptedLoad(lambda: current.model.adaptation)
        return
    with LoadWatch(options.sensors_root, hit_rate=options.hit_rate).running() as watch:
        yield watch


def _digest(bundle: Path, form: str | None = None) -> str:
    """Digest of the manifest and of the requested format: another format may have other SubNets."""
    return hashlib.sha256(read_bytes(bundle / BUNDLE_FILE, AGAIN) + (form or "").encode()).hexdigest()
