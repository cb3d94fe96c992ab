"""An output folder at a URL, the local copy in which a run works, and measurements at the URL with many writers.

A stage at the URL is downloaded instead of worked. A stage worked here is uploaded when it is complete. While one
machine works a stage, others that need it wait for it and then download it. Measurements and the stage's partial
results are uploaded during the work: if its machine is lost, the next one continues from there.

Measurements are immutable pieces with unique names, merged on reading:

    luts/DEVICE/part-….parquet      parts of look-up tables, as in a folder
    subnets/KEY/SHA256.jsonl        lines of measured SubNets that one machine had and nobody had uploaded yet
    subnets/KEY/key.json            the conditions that all lines of KEY share
    nights/TIME.json                records of nights, as in a folder

Nothing is locked and nothing is written twice: each machine uploads its own measurements.
"""

import hashlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from flows.storage import (
    EXPORTS_FOLDER,
    NIGHTS_FOLDER,
    STAGES_FOLDER,
    SUBNETS_FOLDER,
    TABLES_FOLDER,
    is_shared,
    local_folder,
    publishing,
)
from flows.storage.leases import LeaseLocks
from flows.storage.objects import Objects, open_objects
from flows.storage.publishing import UnfinishedStage, announced
from tasks.base.artifacts import RESULT_FILE, StageFolder, digest_of, json_bytes, write_bytes
from tasks.base.artifacts.files import intact_lines, merge_lines
from tasks.base.artifacts.folders import DIGESTS_FILE, KEY_FILE, RECORDS_FILE, FolderRecord
from tasks.base.errors import UserError
from tasks.base.schemas.placed import PARTS

PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/part-[A-Za-z0-9._-]+\.parquet")
NIGHT = re.compile(r"[0-9]{8}T[0-9]{12}Z\.json")
PIECE = re.compile(r"[0-9a-f]{16}/[0-9a-f]{64}\.jsonl")
PIECES = "pieces"
"""Folder beside the lines of a key, for the pieces that were uploaded or downloaded."""
DAMAGED_END = ".damaged"


class SharedFiles:
    """Files that never change, in a local folder and at a URL."""

    def __init__(self, objects: Objects, name: str, folder: Path, files: str, names: re.Pattern[str]) -> None:
        """name: the folder at the URL; "": the URL itself. files: a glob of local files. names: pattern of files that count."""
        self._objects, self._name, self._folder, self._files, self._names = objects, name, folder, files, names

    def fetch(self) -> int:
        """Download the missing files, and return their number. Files that were quarantined here as damaged are skipped."""
        files = {part: self._folder / part for part in self._there()}
        missing = {
            part: file
            for part, file in files.items()
            if not file.exists() and not file.with_name(file.name + DAMAGED_END).exists()
        }
        for part, file in missing.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            arriving = file.with_name(f".{file.name}.tmp")
            if self._objects.download(self._at(part), arriving):
                arriving.replace(file)
        return len(missing)

    def publish(self) -> int:
        """Upload the files that are missing at the URL, and return their number."""
        there = set(self._there())
        own = [file.relative_to(self._folder).as_posix() for file in sorted(self._folder.glob(self._files))]
        new = [part for part in own if part not in there and self._names.fullmatch(part)]
        for part in new:
            self._objects.upload(self._folder / part, self._at(part))
        return len(new)

    def _there(self) -> list[str]:
        names = (name.removeprefix(self._name).lstrip("/") for name in self._objects.names(self._name))
        return [name for name in names if self._names.fullmatch(name)]

    def _at(self, part: str) -> str:
        return f"{self._name}/{part}".lstrip("/")


def shared_tables(objects: Objects, name: str, folder: Path) -> SharedFiles:
    """The look-up tables in a local folder and at a URL."""
    return SharedFiles(objects, name, folder, f"*/{PARTS}", PART)


def shared_nights(objects: Objects, name: str, folder: Path) -> SharedFiles:
    """The records of nights in a local folder and at a URL."""
    return SharedFiles(objects, name, folder, "*.json", NIGHT)


class SharedLines:
    """The measured SubNets in a local folder and at a URL."""

    def __init__(self, objects: Objects, name: str, folder: Path) -> None:
        self._objects, self._name, self._folder = objects, name, folder

    def fetch(self) -> int:
        """Download the missing pieces, append their lines to the records, and return their number. Damaged ones are skipped."""
        found = 0
        for piece in self._there():
            key, _, name = piece.partition("/")
            file = self._folder / key / PIECES / name
            if file.exists():
                continue
            content = self._objects.read(f"{self._name}/{piece}") or b""
            if _name_of(content) != name:
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            merge_lines(self._folder / key / RECORDS_FILE, content)
            write_bytes(file, content)
            found += 1
        return found

    def publish(self) -> int:
        """Upload the lines that are in no piece yet, one piece per key, and return the number of pieces."""
        new = 0
        for records in sorted(self._folder.glob(f"*/{RECORDS_FILE}")):
            folder, key = records.parent, records.parent.name
            pieces = folder / PIECES
            known = {line for piece in pieces.glob("*.jsonl") for line in intact_lines(piece.read_bytes())}
            content = b"".join(line for line in intact_lines(records.read_bytes()) if line not in known)
            if not content:
                continue
            self._objects.create(f"{self._name}/{key}/{KEY_FILE}", (folder / KEY_FILE).read_bytes())
            self._objects.write(f"{self._name}/{key}/{_name_of(content)}", content)
            pieces.mkdir(exist_ok=True)
            write_bytes(pieces / _name_of(content), content)
            new += 1
        return new

    def _there(self) -> list[str]:
        names = (name.removeprefix(f"{self._name}/") for name in self._objects.names(self._name))
        return [name for name in names if PIECE.fullmatch(name)]


def _name_of(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()}.jsonl"


MARK = "autotailor.json"
FORMAT = 1
"""Format of the layout at a URL."""
MARKED = json_bytes({"format": FORMAT})
"""The content of `MARK`, which each run writes there."""
ARRIVING = ".arriving"
"""Folder of the local copy for incomplete downloads."""
MACHINE_FILE = ".machine"
BRING_SECONDS = 20.0
"""Interval between uploads of measurements and partial results [s]."""
PAUSE = 9
"""The least pause, as a multiple of the upload's duration: large checkpoints take a tenth of the time."""

Say = Callable[[str], None]


class Mirror:
    """An output folder at a URL, and its local copy."""

    def __init__(self, objects: Objects, folder: Path) -> None:
        self.objects = objects
        self.folder = folder
        self.locks = LeaseLocks(objects.unhindered())
        self.bring_s = BRING_SECONDS
        self.tables = shared_tables(objects, TABLES_FOLDER, folder / TABLES_FOLDER)
        self.nights = shared_nights(objects, NIGHTS_FOLDER, folder / NIGHTS_FOLDER)
        self._lines = SharedLines(objects, SUBNETS_FOLDER, folder / SUBNETS_FOLDER)
        self._measured = threading.Lock()

    def check(self) -> None:
        """UserError if the URL cannot be written, or has an output folder of another version."""
        self.is_there()
        self.objects.write(MARK, MARKED)  # at each start, as hours of work could not be uploaded to a read-only place

    def is_there(self) -> bool:
        """Whether the URL has an output folder. UserError if it is of another version."""
        known = self.objects.read(MARK)
        if known is not None and known != MARKED:
            got = f"'{MARK}' there says {known[:80]!r}; this version of autotailor reads format {FORMAT}"
            raise UserError(f"storage '{self.objects.url}'", got, next_step="choose another with output_dir=…")
        return known is not None

    @contextmanager
    def turn(self, folder: StageFolder, say: Say) -> Iterator[None]:
        """The block works a stage in its folder if it is incomplete; afterwards it is at the URL as well.

        A stage at the URL is downloaded first. If another machine works it, the block waits for that machine. Files whose
        transfer failed are transferred again by the next run. say: is called with messages for the user.
        """
        name = self._name(folder)
        if folder.complete or self._comes(folder):
            yield
            if not publishing.is_there(self.objects, name):
                self._publish(folder, say)
                self._unfinished(name, 0, folder).forget()
            return
        with self.locks.held(name, say) as number:
            if self._comes(folder):
                yield
                return
            unfinished = self._unfinished(name, number, folder)
            if not folder.anew and unfinished.fetch():
                say("goes on from what another machine has left")
            with self._brought(unfinished, say):
                yield
            if not self._publish(folder, say):
                say("another machine was faster; its results are used")
                self.fetch(name)
            unfinished.forget()

    def fetch_stage(self, folder: StageFolder) -> bool:
        """Download a stage's folder. False: it is not complete at the URL."""
        return self.fetch(self._name(folder))

    def fetch(self, name: str) -> bool:
        """Download a folder, replacing a local one. False: it is not at the URL."""
        return publishing.fetch(self.objects, name, self.folder / name, self.folder / ARRIVING / digest_of(name))

    def fetch_latest(self, stage: str) -> None:
        """Download the folder that was completed last, among a stage's folders at the URL."""
        names = self.stages(stage)
        if names:
            latest = max(names, key=self.objects.modified)
            if not (self.folder / latest / RESULT_FILE).exists():
                self.fetch(latest)

    def publish_results(self, folders: list[str], files: list[str]) -> None:
        """Upload folders, replacing existing ones, and single files under their own names."""
        for name in folders:
            folder = self.folder / name
            record = FolderRecord.of(folder)
            with announced(self.objects, self.locks, record):
                publishing.publish(self.objects, name, folder, record, replace=True)
        for name in files:
            self.objects.upload(self.folder / name, name)

    def _name(self, folder: StageFolder) -> str:
        return folder.final.relative_to(self.folder).as_posix()

    def stages(self, stage: str) -> list[str]:
        """Names of the folders that a stage has at the URL: complete, under any key."""
        place = f"{STAGES_FOLDER}/{stage}"
        names = (name.removesuffix(publishing.RECORD_END) for name in self.objects.names(place))
        return [name for name in names if name.rpartition("/")[0] == place]

    def _publish(self, folder: StageFolder, say: Say) -> bool:
        record = FolderRecord.model_validate_json((folder.final / DIGESTS_FILE).read_bytes())
        with announced(self.objects, self.locks, record, say):
            return publishing.publish(self.objects, self._name(folder), folder.final, record, replace=folder.anew)

    def _comes(self, folder: StageFolder) -> bool:
        """Whether a stage was at the URL and is now here."""
        if folder.anew or not self.fetch_stage(folder):
            return False
        shutil.rmtree(folder.partial, ignore_errors=True)
        return True

    def _unfinished(self, name: str, number: int, folder: StageFolder) -> UnfinishedStage:
        still, machine = self.folder / ARRIVING / f"{digest_of(name)}-still", self.folder / MACHINE_FILE
        if not machine.exists():
            write_bytes(machine, uuid4().hex.encode())  # the unique name of this copy of the output folder
        return UnfinishedStage(self.objects, name, number, folder.partial, still, machine.read_text())

    @contextmanager
    def _brought(self, unfinished: UnfinishedStage, say: Say) -> Iterator[None]:
        """Download measurements before the block, and upload them during the block and at its end, even after an error."""
        with self._measured:
            self.tables.fetch()
            self._lines.fetch()
        ends = threading.Event()
        brings = threading.Thread(target=self._bring, args=(unfinished, ends, say), daemon=True)
        brings.start()
        is_complete = False
        try:
            yield
            is_complete = True
        finally:
            ends.set()
            brings.join()
            if not is_complete:
                self._publish_or_say(unfinished, say)
        self._publish_measured()

    def _bring(self, unfinished: UnfinishedStage, ends: threading.Event, say: Say) -> None:
        pause_s = self.bring_s
        while not ends.wait(pause_s):
            began = time.monotonic()
            self._publish_or_say(unfinished, say)
            pause_s = max(self.bring_s, PAUSE * (time.monotonic() - began))

    def _publish_or_say(self, unfinished: UnfinishedStage, say: Say) -> None:
        """Upload measurements and partial results; if the storage is unreachable, this is left to a later upload."""
        try:
            self._publish_measured()
            unfinished.publish()
        except UserError as error:
            say(str(error))

    def _publish_measured(self) -> None:
        with self._measured:
            self.tables.publish()
            self._lines.publish()


def exports_here(place: Path | str, device: str) -> Path:
    """The local output folder with a device's latest exported files; for a URL, they are downloaded first."""
    mirror = mirror_of(place)
    if mirror is not None:
        mirror.fetch(f"{EXPORTS_FOLDER}/{device}")
    return local_folder(place)


def mirror_of(place: Path | str) -> Mirror | None:
    """The mirror of an output folder at a URL; None for a local folder. UserError if a required package is missing."""
    return Mirror(open_objects(str(place)), local_folder(place)) if is_shared(place) else None
