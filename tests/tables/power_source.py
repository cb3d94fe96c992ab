"""Files like those of a processor's RAPL counters, which go up as those of a processor of constant power would."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DOMAIN = "sys/class/powercap/intel-rapl:0"
STEP_S = 0.001


@contextmanager
def rapl(root: Path, watts: float) -> Iterator[Path]:
    """`root` with one package that takes so much power, as `--sensors-root` of an agent; 0 W: it stands still."""
    folder = root / DOMAIN
    folder.mkdir(parents=True)
    (folder / "name").write_text("package-0\n")
    (folder / "max_energy_range_uj").write_text(f"{2**60}\n")
    start_s, ended = time.perf_counter(), threading.Event()

    def count() -> None:
        """The file is replaced whole: one that is read while it is written would be empty."""
        energy_uj = 5_000_000 + int(1e6 * watts * (time.perf_counter() - start_s))
        (folder / "next").write_text(f"{energy_uj}\n")
        os.replace(folder / "next", folder / "energy_uj")

    def keep_counting() -> None:
        while not ended.wait(STEP_S):
            count()

    count()
    thread = threading.Thread(target=keep_counting, daemon=True)
    thread.start()
    try:
        yield root
    finally:
        ended.set()
        thread.join()
