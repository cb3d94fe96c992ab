"""Parts: the units of loading and freeing; one ONNX file, or one net of ncnn."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import OpenBundle
from adaptive_runtime.bundle.chains import ChainManifest, NcnnChain, inputs_of, session_options
from adaptive_runtime.pool.prepared import Names, PreparationError, PreparedFiles
from adaptive_runtime.pool.preparing import prepared_settings
from adaptive_runtime.samples.several import packed
from profiling_agents.messages import RuntimeSettings

FATAL_ALONE = 4
"""Errors are raised and reported in one line; onnxruntime need not print them, too."""


class VariantError(Exception):
    """Loading or running a variant failed. One line."""


class PoolPart:
    """A part by name. value: the loaded object; None: not loaded. need_mib: its largest memory while it is loaded.

    used: number of the latest request that used it. own: loads it from its file; loads: the present way of loading.
    """

    __slots__ = ("_kept_mib", "loads", "name", "need_mib", "own", "used", "value")

    def __init__(self, name: str, loads: Callable[[], Any], need_mib: float) -> None:
        self.name, self.own, self.loads, self.need_mib = name, loads, loads, need_mib
        self.value: Any = None
        self.used = 0
        self._kept_mib = 0.0

    @property
    def kept_mib(self) -> float:
        """Memory of the loaded part, as far as known."""
        return self._kept_mib or self.need_mib

    def grew(self, mib: float, kept_mib: float) -> None:
        """Record that the process grew by `mib` while the part was loaded, and by `kept_mib` afterwards.

        Both underestimate if the part reused memory that others had freed, so neither value ever shrinks.
        """
        self.need_mib = max(mib, self.need_mib)
        self._kept_mib = max(kept_mib, self._kept_mib)


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
