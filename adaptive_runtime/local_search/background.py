"""A search in a separate process, which can be paused, stopped at any moment, and resumed."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.base.process import child_process
from adaptive_runtime.local_search.child import SearchOrder
from adaptive_runtime.local_search.proposals import LocalSearchSettings
from adaptive_runtime.pool.prepared import LAST_LINE


class BackgroundSearch:
    """A search that runs beside this process, at the lowest priority.

    bundle: its folder. images: an .npz file or a folder (`OwnImages.read`), or arrays (x, y), which are piped to the process.
    folder: of state and results; a stopped search in it is resumed. tell: called with events, in a separate thread. niceness:
    19 is the lowest priority.
    """

    def __init__(
        self,
        bundle: str | Path,
        images: str | Path | tuple[NDArray[np.float32], NDArray[np.int64] | None],
        folder: str | Path,
        settings: LocalSearchSettings,
        tell: Callable[[dict[str, Any]], None] = lambda event: None,
        key_file: str | Path | None = None,
        niceness: int = 19,
    ) -> None:
        own = None if isinstance(images, tuple) else Path(images).absolute()
        order = SearchOrder(
            bundle=Path(bundle).absolute(),
            key_file=None if key_file is None else Path(key_file).absolute(),
            images=own,
            folder=Path(folder).absolute(),
            settings=settings,
            niceness=niceness,
        )
        command, environment = child_process("adaptive_runtime.local_search.child", order.model_dump_json())
        environment["OMP_NUM_THREADS"] = "1"
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        self.folder, self._tell, self._error = order.folder, tell, ""
        self._complaint = b""
        self._listeners = [threading.Thread(target=one, daemon=True) for one in (self._listen, self._read_complaints)]
        for listener in self._listeners:
            listener.start()
        self._send(images if isinstance(images, tuple) else None)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists, even if it is paused."""
        return self._process.poll() is None

    def pause(self) -> None:
        """Pause the process; it keeps its memory."""
        self._signal("SIGSTOP")

    def go_on(self) -> None:
        """Resume a paused process."""
        self._signal("SIGCONT")

    def stop(self) -> None:
        """End the process at once.

        Another search with the same folder, settings and images resumes after the last complete generation.
        """
        if self.is_running:
            self._process.kill()
        self._process.wait()
        self._end_listening()

    def wait(self, timeout_s: float | None = None) -> Path:
        """Wait for the end and return the folder, for `load(…, also=folder)`. AdaptiveError: it failed or was stopped.

        TimeoutError: it still runs.
        """
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the search still runs after {timeout_s} s") from error
        self._end_listening()
        if code:
            last = self._complaint.decode(errors="replace").strip()[:LAST_LINE]
            line = self._error or last or f"ended with code {code}"
            raise AdaptiveError("search", line, next_step="the same search goes on from its folder")
        return self.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _signal(self, name: str) -> None:
        if not hasattr(signal, name):
            raise AdaptiveError("search", "this system cannot pause a process", next_step="stop it, and start it again")
        if self.is_running:
            self._process.send_signal(getattr(signal, name))

    def _send(self, arrays: tuple[NDArray[np.float32], NDArray[np.int64] | None] | None) -> None:
        assert self._process.stdin is not None
        with self._process.stdin as stream:
            if arrays is not None:
                x, y = arrays
                np.savez(stream, allow_pickle=False, x=x, **({} if y is None else {"y": y}))

    def _end_listening(self) -> None:
        """Read the rest of the pipes, and close them."""
        for listener in self._listeners:
            listener.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _listen(self) -> None:
        for event in self._events():
            if event["event"] == "error":
                self._error = event["line"]
            self._tell(event)

    def _read_complaints(self) -> None:
        """Keep the last line that the process writes when it fails."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._complaint = line if line.strip() else self._complaint

    def _events(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
