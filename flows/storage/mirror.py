"""An output folder at a URL, and the local copy in which a run works.

A stage at the URL is downloaded instead of worked. A stage worked here is uploaded when it is complete. While one machine works
a stage, others that need it wait for it and then download it. Measurements and the stage's partial results are uploaded during
the work: if its machine is lost, the next one continues from there.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from flows.storage import manifests
from flows.storage.address import is_shared, local_folder
from flows.storage.layout import EXPORTS_FOLDER, NIGHTS_FOLDER, STAGES_FOLDER, SUBNETS_FOLDER, TABLES_FOLDER
from flows.storage.leases import Locks
from flows.storage.measured import SharedLines, SharedNights, SharedTables
from flows.storage.objects import Objects, open_objects
from flows.storage.publishing import announced
from flows.storage.unfinished import UnfinishedStage
from tasks.base.artifacts import RESULT_FILE, StageFolder, digest_of, json_bytes, write_bytes
from tasks.base.artifacts.digests import DIGESTS_FILE, FolderRecord
from tasks.base.errors import UserError

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
        self.locks = Locks(objects.unhindered())
        self.bring_s = BRING_SECONDS
        self.tables = SharedTables(objects, TABLES_FOLDER, folder / TABLES_FOLDER)
        self.nights = SharedNights(objects, NIGHTS_FOLDER, folder / NIGHTS_FOLDER)
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
            if not manifests.is_there(self.objects, name):
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
        return manifests.fetch(self.objects, name, self.folder / name, self.folder / ARRIVING / digest_of(name))

    def has_stage(self, stage: str) -> bool:
        """Whether a stage of this name is complete at the URL under any key."""
        return bool(self._stages(stage))

    def fetch_latest(self, stage: str) -> None:
        """Download the folder that was completed last, among a stage's folders at the URL."""
        names = self._stages(stage)
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
                manifests.publish(self.objects, name, folder, record, replace=True)
        for name in files:
            self.objects.upload(self.folder / name, name)

    def _name(self, folder: StageFolder) -> str:
        return folder.final.relative_to(self.folder).as_posix()

    def _stages(self, stage: str) -> list[str]:
        """Names of the folders that a stage has at the URL."""
        place = f"{STAGES_FOLDER}/{stage}"
        names = (name.removesuffix(manifests.RECORD_END) for name in self.objects.names(place))
        return [name for name in names if name.rpartition("/")[0] == place]

    def _publish(self, folder: StageFolder, say: Say) -> bool:
        record = FolderRecord.model_validate_json((folder.final / DIGESTS_FILE).read_bytes())
        with announced(self.objects, self.locks, record, say):
            return manifests.publish(self.objects, self._name(folder), folder.final, record, replace=folder.anew)

    def _comes(self, folder: StageFolder) -> bool:
        """Whether a stage was at the URL and is now here."""
        if folder.anew or not self.fetch_stage(folder):
            return False
        shutil.rmtree(folder.partial, ignore_errors=True)
        return True

    def _unfinished(self, name: str, number: int, folder: StageFolder) -> UnfinishedStage:
        still = self.folder / ARRIVING / f"{digest_of(name)}-still"
        return UnfinishedStage(self.objects, name, number, folder.partial, still, self._machine())

    def _machine(self) -> str:
        """The unique name of this copy of the output folder."""
        file = self.folder / MACHINE_FILE
        if not file.exists():
            write_bytes(file, uuid4().hex.encode())
        return file.read_text()

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
