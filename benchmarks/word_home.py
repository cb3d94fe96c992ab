"""Whom programs of the project look up or connect to, and where they write: what strace sees of each, in an empty home.

python -m benchmarks.word_home [SUBJECT …] [--markdown]: agent, runtimes, run, example, serve, nightly; all unless named.
`example` and `serve` use the files of `run`, which is worked first. Needs strace; the settings of this shell do not count.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.tables import show
from importing import SETTINGS

ROOT = Path(__file__).resolve().parents[1]
TRACED = "connect,open,openat,creat,mkdir,mkdirat"
ADDRESS = re.compile(
    r'connect\(.*?(?:sin_port|sin6_port)=htons\((\d+)\).*?inet_(?:addr|pton)\((?:AF_INET6, )?"([^"]+)"'
)
MADE = re.compile(r'(?:openat\([^,]*, |open\(|creat\(|mkdir\(|mkdirat\([^,]*, )"([^"]+)"(.*)\) += (?:\d|-1 EEXIST)')
DNS = 53
MOST_SHOWN = 5
ELSEWHERE = (tempfile.gettempdir(), "/var/tmp", "/dev", "/proc", "/sys")
"""Besides folders of the project; SQLite has its temporary files in /var/tmp."""
AGENT = """
from profiling_agents.client import local_agent
with local_agent({runtime!r}) as client:
    print(client.capabilities().backend)
"""
RUNTIMES = ("onnxruntime", "ncnn", "openvino", "executorch", "torch")
SERVED = """
import subprocess, sys
command = [sys.executable, "-m", "adaptive_runtime", "serve", *sys.argv[1:], "--port", "0"]
service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
for line in service.stdout:
    if "service ready" in line:
        break
service.terminate()
service.wait()
"""


class Seen(NamedTuple):
    """Of one program. code: its exit code. written: files and folders outside of those of the project."""

    subject: str
    code: int
    lookups: int
    others: tuple[str, ...]
    written: tuple[str, ...]

    @property
    def is_silent(self) -> bool:
        """Whether it asked nobody and wrote nowhere."""
        return not (self.lookups or self.others or self.written)


class Place:
    """A home, a working folder, and the programs that run there."""

    def __init__(self, folder: Path) -> None:
        self.home, self.work, self._trace = folder / "home", folder / "work", folder / "trace"
        self.home.mkdir()
        self.work.mkdir()
        self._environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        self._environment |= {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MLFLOW_TRACKING_URI", "PREFECT_API_URL", "PREFECT_HOME"):
            self._environment.pop(name, None)

    def seen(self, subject: str, *words: str) -> Seen:
        """What a Python program did."""
        trace = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "300", "-e", f"trace={TRACED}", "-o", str(self._trace)]
        done = subprocess.run(
            [*trace, sys.executable, *words],
            env=self._environment,
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"{subject}: {(done.stderr or done.stdout).strip().splitlines()[-1:]}", file=sys.stderr)
        with self._trace.open(encoding="utf-8", errors="replace") as lines:
            return seen_in(
                subject,
                done.returncode,
                lines,
                str(self.home),
                (str(self.work), str(self.home / ".cache" / "autotailor")),
            )


def seen_in(subject: str, code: int, lines: Iterable[str], home: str, allowed: tuple[str, ...]) -> Seen:
    """What the lines of a trace tell. allowed: folders of the project, which may lie in the home; temporary ones are, too."""
    lookups, others, written = 0, Counter[str](), Counter[str]()
    for line in lines:
        if found := ADDRESS.search(line):
            port, host = int(found[1]), found[2]
            if port == DNS:
                lookups += 1
            elif not (host.startswith("127.") or host in ("::1", "0.0.0.0", "::")):
                others[f"{host}:{port}"] += 1
        elif (found := MADE.search(line)) and _is_made(line, found[2]) and found[1].startswith("/"):
            roots = allowed if _inside(found[1], (home,)) else (*allowed, *ELSEWHERE)
            if not _inside(found[1], roots) and not any(_inside(root, (found[1],)) for root in allowed):
                written[found[1]] += 1
    return Seen(subject, code, lookups, tuple(others), tuple(written))


def _inside(path: str, roots: Iterable[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _is_made(line: str, flags: str) -> bool:
    return "O_CREAT" in flags or "O_WRONLY" in flags or "O_RDWR" in flags or "mkdir" in line or "creat(" in line


def subjects(place: Place, asked: list[str]) -> Iterator[Seen]:
    """Each that is asked for, in an order in which files are there when they are needed."""
    agents = {"agent": RUNTIMES[:1], "runtimes": RUNTIMES}
    for subject in agents:
        for runtime in agents[subject] if subject in asked else ():
            if subprocess.run([sys.executable, "-c", f"import {runtime}"], capture_output=True, check=False).returncode:
                print(f"{runtime}: not installed", file=sys.stderr)
                continue
            yield place.seen(f"{subject}: {runtime}", "-c", AGENT.format(runtime=runtime))
    if {"run", "example", "serve"} & set(asked):
        settings = ("device=[onnxruntime,ncnn]", "output_dir=out", "export.bundle=true")
        yield place.seen("run", "-m", "flows.cli", "run", "+preset=quick", *settings)
    exports = place.work / "out" / "exports"
    if "example" in asked:
        for device in sorted(exports.glob("*")):
            for example in sorted(device.glob("*.py"))[:1]:
                yield place.seen(f"example on {device.name}", "-I", str(example))
    if "serve" in asked:
        for bundle in sorted(exports.glob("*/bundle"))[:1]:
            yield place.seen("serve", "-c", SERVED, str(bundle))
    if "nightly" in asked:
        yield place.seen("nightly", "-m", "flows.cli", "nightly", "+preset=quick", "output_dir=nights")


def _listed(names: tuple[str, ...]) -> str:
    return (
        ", ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else "")
        or "-"
    )


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def main() -> None:
    """Print a row for each program."""
    names = ("agent", "runtimes", "run", "example", "serve", "nightly")
    parser = argparse.ArgumentParser()
    parser.add_argument("subjects", nargs="*", default=names, metavar="SUBJECT")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("strace") is None:
        sys.exit("strace is not installed")
    if unknown := sorted(set(arguments.subjects) - set(names)):
        sys.exit(f"no such subject: {', '.join(unknown)}; allowed: {', '.join(names)}")
    heads = ("program", "exit code", "look-ups", "connections elsewhere", "written elsewhere", "silent")
    with tempfile.TemporaryDirectory(prefix="word-home-") as folder:
        rows = [
            (
                one.subject,
                str(one.code),
                str(one.lookups),
                *map(_listed, (one.others, one.written)),
                _yes(one.is_silent),
            )
            for one in subjects(Place(Path(folder)), list(arguments.subjects))
        ]
    show(heads, rows, markdown=arguments.markdown)


if __name__ == "__main__":
    main()
