"""The C client of the local socket as a program that does what a test says."""

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import pytest

from adaptive_runtime.cli import main
from tests.support.runtime.service_process import SAMPLE

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZERS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
PROGRAM = Path(__file__).with_name("local_client_program.c")
TIMEOUT_MS = 300_000


def compiled(*words: str | Path) -> None:
    """Run a compiler, which has nothing to say."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def sanitizer_flags(folder: Path) -> tuple[str, ...]:
    """Flags with which errors of memory end a program; none where the compiler has no such library."""
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        pytest.skip("no gcc or g++ here")
    empty = folder / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    words = ["gcc", *SANITIZERS, str(empty), "-o", str(empty.with_suffix(""))]
    works = subprocess.run(words, capture_output=True, check=False).returncode == 0
    return SANITIZERS if works and not subprocess.run([empty.with_suffix("")], check=False).returncode else ()


def client_source(folder: Path) -> Path:
    """The sources as a user gets them, in a new folder in this one."""
    found = folder / "new" / "client"
    assert main(["client-source", str(found)]) == 0
    return found


def client_object(source: Path, sanitizers: tuple[str, ...]) -> Path:
    """The client, compiled as C99."""
    found = source / "autotailor_client.o"
    compiled("gcc", "-std=c99", *WARNINGS, *sanitizers, "-c", source / "autotailor_client.c", "-o", found)
    return found


def client_program(source: Path, client: Path, sanitizers: tuple[str, ...]) -> Path:
    """The program that does what stdin says. client: its object."""
    found = source / "program"
    compiled("gcc", "-std=c99", *WARNINGS, *sanitizers, f"-I{source}", PROGRAM, client, "-o", found)
    return found


class CAnswer(NamedTuple):
    """What the program prints of an answer."""

    late: bool
    subnet: str
    exit: str
    logits: np.ndarray


class CClient:
    """The program while it runs. It must end with 0, which it does not after an error of memory, or a leak."""

    def __init__(self, program: Path, values: Path, *sample: int | str) -> None:
        """sample: C, H and W of an image; T, 1, 1 and `tokens` of a text."""
        words = [str(program), str(values), *map(str, sample or SAMPLE)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def tell(self, command: str) -> tuple[int, str]:
        """Do a command: its status, and the rest of the line."""
        self.say(command)
        return self.hear()

    def say(self, command: str) -> None:
        """Begin a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def hear(self) -> tuple[int, str]:
        """The line of a command."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program has ended" + self.end()
        status, _, rest = line.strip().partition(" ")
        return int(status), rest

    def connect(self, path: Path, timeout_ms: float = TIMEOUT_MS) -> None:
        """Connect to a service, which is there."""
        assert self.tell(f"connect {path} {timeout_ms}") == (0, "connected")

    def answer(self, command: str) -> CAnswer:
        """A command that gets an answer."""
        status, rest = self.tell(command)
        assert status == 0, rest
        samples, classes, late, subnet, exit, *logits = rest.split()
        found = np.array([float.fromhex(one) for one in logits]).astype(np.float32)
        return CAnswer(late == "1", subnet, exit, found.reshape(int(samples), int(classes)))

    def end(self) -> str:
        """What it said to stderr, once it has ended."""
        _, told = self.process.communicate(timeout=300)
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        told = self.end()
        if kind is None:
            assert (self.process.returncode, told) == (0, "")
