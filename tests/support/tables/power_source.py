"""Files like those of a processor's RAPL counters, which go up as those of a processor of constant power would.

They are in memory where the system has files there, as the real ones are: on a disk that others write to, they stand still for
longer than an operator is measured.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

DOMAIN = "sys/class/powercap/intel-rapl:0"
STEP_S = 0.001
MEMORY = Path("/dev/shm")


@contextmanager
def rapl(watts: float) -> Iterator[Path]:
    """A `--sensors-root` of an agent with one package that takes so much power; 0 W: it stands still."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as root:
        folder = Path(root) / DOMAIN
        folder.mkdir(parents=True)
        (folder / "name").write_text("package-0\n")
        (folder / "max_energy_range_uj").write_text(f"{2**60}\n")
        start_s = time.perf_counter()
        _count(folder, watts, start_s)
        counter = get_context("spawn").Process(target=_keep_counting, args=(folder, watts, start_s), daemon=True)
        counter.start()  # a process: a thread would wait for what the test computes
        try:
            first = (folder / "energy_uj").read_text()
            while watts and (folder / "energy_uj").read_text() == first:
                assert counter.is_alive()
                time.sleep(STEP_S)
            yield Path(root)
        finally:
            counter.terminate()
            counter.join()


def _count(folder: Path, watts: float, start_s: float) -> None:
    """The file is replaced whole: one that is read while it is written would be empty."""
    energy_uj = 5_000_000 + int(1e6 * watts * (time.perf_counter() - start_s))
    (folder / "next").write_text(f"{energy_uj}\n")
    os.replace(folder / "next", folder / "energy_uj")


def _keep_counting(folder: Path, watts: float, start_s: float) -> None:
    while True:
        time.sleep(STEP_S)
        _count(folder, watts, start_s)
