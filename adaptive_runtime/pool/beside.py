"""Preparing files beside requests: parts serve from the original files until their prepared forms exist."""

import queue
import threading
from collections.abc import Callable

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
