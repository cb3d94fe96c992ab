"""Programs and small files."""

import hashlib
import os
import subprocess

CHUNK = 1 << 20


class StepRefused(Exception):
    """A step cannot be done. The message is one line, with a next step."""


def program(words: list[str], paths: str = "") -> str:
    """The output of a program. paths: its PYTHONPATH. StepRefused with the last line of the output if the program fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if paths:
        environment["PYTHONPATH"] = paths
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise StepRefused(said[-1] if said else f"{words[0]} ended with code {done.returncode}")
    return done.stdout.decode(errors="replace")


def sha256(path: str) -> str:
    """sha256 of a file (hex)."""
    found = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Write a small file atomically."""
    temporary = f"{path}.partial"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
