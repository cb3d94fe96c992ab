"""Runs on a bare device at the other end of an ssh connection, sent there as text: `python3 -c TEXT`.

The module needs the standard library only. Old Pythons can parse it too, so that they are refused in one line. It reads from
stdin the length of a JSON text as ten digits, the text, then the files that the text lists. The agent gets the rest of stdin.
"""

import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, NoReturn

LENGTH_DIGITS = 10
OLDEST = (3, 11)


def read(size: int) -> bytes:
    """The next `size` bytes of stdin, read without a buffer, so that the following bytes are left to the agent."""
    parts = []
    while size:
        part = os.read(0, size)
        if not part:
            refuse("the connection closed before everything was there")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def refuse(line: str) -> NoReturn:
    """One line on stderr, exit code 3."""
    sys.stderr.write(line + "\n")
    sys.exit(3)


def check(modules: "list[str]") -> None:
    """Refuse a Python that is too old or lacks a module."""
    if sys.version_info < OLDEST:
        refuse("Python " + platform.python_version() + " is too old; install Python 3.11 or newer there")
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        refuse(sys.executable + " lacks " + ", ".join(missing) + "; install with pip: " + " ".join(missing))


def start(folder: str, request: "dict[str, Any]") -> int:
    """Write the files and run the agent until it ends."""
    for name, size in request["files"]:
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(read(size))
    environment = dict(os.environ, PYTHONPATH=folder, AUTOTAILOR_AGENT_TOKEN=request["token"])
    command = [sys.executable, "-P", "-m", "profiling_agents", *request["arguments"]]
    agent = subprocess.Popen(command, env=environment, cwd=folder)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: agent.terminate())
    return agent.wait()


def main() -> int:
    """Make a private folder, start the agent, remove the folder."""
    request = json.loads(read(int(read(LENGTH_DIGITS))).decode())
    check(request["modules"])
    try:
        folder = tempfile.mkdtemp(prefix="autotailor-ssh-")
    except OSError as error:
        refuse("no temporary folder can be made there: " + str(error))
    try:
        return start(folder, request)
    except OSError as error:
        refuse("the agent's files cannot be written there: " + str(error))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
