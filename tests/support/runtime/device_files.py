"""Files of a device in a temporary folder, as Linux shows them."""

import os
from collections.abc import Mapping
from pathlib import Path

HZ = os.sysconf("SC_CLK_TCK")


def write(root: Path, files: Mapping[str, object]) -> Path:
    """Each file below `root` with its content."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")
    return root


def stat(*, busy: int, idle: int, iowait: int = 0, steal: int = 0, running: int = 1) -> str:
    """/proc/stat with these ticks; the guest columns repeat a part of user, as Linux does."""
    return (
        f"cpu  {busy} 0 0 {idle} {iowait} 0 0 {steal} {busy // 2} 0\ncpu0 1 0 0 1 0 0 0 0 0 0\nprocs_running {running}"
    )


def pressure(avg10: float, total_us: int) -> str:
    """A file of /proc/pressure."""
    return f"some avg10={avg10:.2f} avg60=0.00 avg300=0.00 total={total_us}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0"


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
