"""Loads the files of a bundle; ONNX files are optimised by the runtime once, kept beside the bundle, and memory-mapped.

A prepared file is valid for one runtime, one processor and one group of settings. Its folder's name is the digest of
these and of the file. Files are prepared beside requests: parts serve from the original files until their prepared
forms exist.
"""

import hashlib
import json
import platform
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.files import json_of, sha256_of
from adaptive_runtime.base.process import child_process
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import ChainManifest, NcnnChain, inputs_of, session_options
from adaptive_runtime.pool.preparing import MODEL_FILE, PreparationOrder, prepared_settings
from adaptive_runtime.samples.inputs import packed
from profiling_agents.messages import RuntimeSettings

Work = Callable[[], None]


class Beside:
    """One thread that runs given work in order; it starts with the first work. Work that is added twice runs once."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Work | None] = queue.Queue()
        self._known: set[object] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, key: object, work: Work) -> None:
        """Run work later, unless work with this key is already waiting."""
        with self._lock:
            if self._closed or key in self._known:
                return
            self._known.add(key)
            self._waiting.put(lambda: self._do(key, work))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="prepares files", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Wait until no work is left."""
        self._waiting.join()

    def close(self) -> None:
        """Let running work end; drop waiting work."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._waiting.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _do(self, key: object, work: Work) -> None:
        with self._lock:
            self._known.discard(key)
        if not self._closed:
            work()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            try:
                work()
            finally:
                self._waiting.task_done()
        self._waiting.task_done()


FOLDER = "prepared"
DIGESTS_FILE = "digests.json"
DIGITS = 32
MOST_S = 600
LAST_LINE = 300
Names = tuple[str, ...]
"""A file of the bundle, then the files that it refers to."""


class PreparationError(Exception):
    """A file cannot be prepared. One line."""


class PreparedFiles:
    """Prepared forms of a bundle's ONNX files. `folder`: where they are kept; default: `prepared/` in the bundle's folder."""

    def __init__(self, bundle: OpenBundle, settings: RuntimeSettings, folder: Path | None = None) -> None:
        self.bundle, self.settings = bundle, settings
        self.folder = bundle.folder / FOLDER if folder is None else folder
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        self._machine = _machine()
        self._child: subprocess.Popen[str] | None = None
        self.stopped = False

    def get(self, *files: Names) -> list[Path]:
        """The prepared forms of files of the bundle; missing ones are made in a child process. PreparationError."""
        with self._lock:
            places = {self.folder / self._key(names): names for names in files}
            new = [place for place in places if place.name not in self._checked]
            if missing := [place for place in new if not _is_whole(place)]:
                self._make({place: self.bundle.verified(*places[place])[0] for place in missing})
            self._checked |= {place.name for place in new}
            return [place / MODEL_FILE for place in places]

    def ready(self, names: Names) -> Path | None:
        """The prepared form of a file, or None if it does not exist; never waits for a running preparation."""
        place = self.folder / self._key(names)
        if place.name not in self._checked and not _is_whole(place):
            return None
        self._checked.add(place.name)
        return place / MODEL_FILE

    def stop(self) -> None:
        """End the child that prepares, and start no further one."""
        self.stopped = True
        if self._child is not None:
            self._child.kill()

    def forget(self, names: Names) -> None:
        """Remove a prepared file that does not load."""
        key = self._key(names)
        self._checked.discard(key)
        shutil.rmtree(self.folder / key, ignore_errors=True)

    def _key(self, names: Names) -> str:
        digests = [self.bundle.manifest.files[name].sha256 for name in names]
        text = json.dumps([self._machine, self.settings, digests], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    def _make(self, sources: Mapping[Path, Path]) -> None:
        """Prepare files; `sources` maps the folder of each prepared form to its original."""
        try:
            self.folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=".partial-") as name:
                made = {place: Path(name).absolute() / place.name for place in sources}
                for place, folder in made.items():
                    shutil.rmtree(place, ignore_errors=True)
                    folder.mkdir()
                pairs = tuple((source.absolute(), made[place]) for place, source in sources.items())
                self._run(PreparationOrder(places=pairs, settings=self.settings))
                for place, folder in made.items():
                    written = {file.name: sha256_of(file) for file in folder.iterdir()}
                    (folder / DIGESTS_FILE).write_text(json.dumps(written))
                    if not place.exists():  # another process may have made it meanwhile
                        folder.rename(place)
        except OSError as error:
            raise PreparationError(f"'{self.folder}' cannot be written ({error.strerror})") from error

    def _run(self, order: PreparationOrder) -> None:
        command, environment = child_process("adaptive_runtime.pool.preparing", order.model_dump_json())
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, text=True, errors="replace"
        ) as self._child:
            if self.stopped:
                self._child.kill()
            try:
                _, described = self._child.communicate(timeout=MOST_S)
            except subprocess.TimeoutExpired as error:
                self._child.kill()
                raise PreparationError(f"preparing it took longer than {MOST_S} s") from error
            except BaseException:
                self._child.kill()
                raise
        if self._child.returncode:
            last = (described.strip().splitlines() or [f"code {self._child.returncode}"])[-1]
            raise PreparationError(f"preparing it failed: {last[:LAST_LINE]}")


def _is_whole(place: Path) -> bool:
    """Whether a prepared file still has the digests with which it was written."""
    try:
        digests = json_of((place / DIGESTS_FILE).read_text())
        return MODEL_FILE in digests and all(sha256_of(place / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, TypeError):
        return False


def _machine() -> list[str]:
    """The runtime and the processor for which a prepared file is valid."""
    import onnxruntime

    from profiling_agents.sensing.sensors import cpu_model

    return [onnxruntime.__version__, onnxruntime.get_build_info(), platform.machine(), cpu_model()]


FATAL_ALONE = 4
"""Errors are raised and reported in one line; onnxruntime need not print them, too."""


class VariantError(Exception):
    """Loading or running a variant failed. One line."""


class PartFiles:
    """Loads the parts of a bundle. prepared: None: ONNX files are loaded as they are. tell: receives lines for people.

    waits: prepare a file before it is loaded; else load the original file if it is not prepared yet.
    """

    def __init__(
        self, bundle: OpenBundle, prepared: PreparedFiles | None, tell: Callable[[str], None], *, waits: bool = True
    ) -> None:
        self.bundle, self.prepared, self.tell, self.waits = bundle, prepared, tell, waits

    def prepare(self, *files: Names) -> None:
        """Prepare ONNX files that are not prepared yet; if that fails, the original files are used."""
        if self.prepared is not None:
            try:
                self.prepared.get(*files)
            except PreparationError as error:
                if self.prepared.stopped:
                    return
                self.tell(f"{files[0][0]}: {error}; files are loaded as they are, which takes longer and more memory")
                self.prepared = None

    def session(self, manifest: ChainManifest, names: Names) -> Any:
        """A session of onnxruntime that has run once."""
        if self.waits:
            self.prepare(names)
        if self.prepared is None or self.is_early(names):
            session = _session(self.bundle.verified(*names)[0], manifest.settings)
        else:
            try:
                session = _prepared_session(self.prepared, names, manifest.settings)
            except PreparationError as error:
                self.tell(f"{names[0]}: {error}; it is prepared again")
                self.prepared.forget(names)
                if not self.waits:
                    return self.session(manifest, names)
                session = _prepared_session(self.prepared, names, manifest.settings)
        session.run(None, inputs_of(session))
        return session

    def is_early(self, names: Names) -> bool:
        """Whether the original file is to be loaded for now, since its prepared form does not exist yet."""
        return not self.waits and self.prepared is not None and self.prepared.ready(names) is None

    def plain_session(
        self, manifest: ChainManifest, names: Names, constants: Mapping[str, NDArray[np.float32]] | None = None
    ) -> Any:
        """A session of an original, unprepared file. constants: by name; they replace those in the weights file."""
        return _session(self.bundle.verified(*names)[0], manifest.settings, constants)

    def net(self, manifest: ChainManifest, folder: Path) -> NcnnChain:
        """A net of ncnn that has run once."""
        self.bundle.verified(*manifest.files)
        net = NcnnChain(manifest, folder)
        zeros = {one.name: np.zeros(tuple(size or 1 for size in one.shape), one.type) for one in manifest.input.every}
        run = net.start(packed(zeros))
        for _ in manifest.segments:
            run.next()
        return net


def _prepared_session(prepared: PreparedFiles, names: Names, settings: RuntimeSettings) -> Any:
    (file,) = prepared.get(names)
    try:
        return _session(file, prepared_settings(settings))
    except Exception as error:  # exceptions of many kinds, none of them ours
        raise PreparationError(f"its prepared form does not load ({failure(error)})") from error


def _session(file: Path, settings: RuntimeSettings, constants: Mapping[str, NDArray[np.float32]] | None = None) -> Any:
    import onnxruntime

    options = session_options(settings)
    options.log_severity_level = FATAL_ALONE
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(value) for name, value in (constants or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    session.constants = constants  # keeps their memory alive as long as the session
    return session


def failure(error: Exception) -> str:
    """An error as one line; errors of a runtime with their type."""
    if isinstance(error, AdaptiveError | VariantError | PreparationError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
