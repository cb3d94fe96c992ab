"""The channel to a device: one process, on this machine or over ssh, that executes the steps one after the other."""

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from profiling_agents.client.ssh import SshTarget, explained
from tasks.base.errors import UserError
from tasks.deploy.device_side import answering, programs, service, software, steps

SENT = (programs, service, software, steps, answering)
"""The modules of the device's half, each after the modules that it imports."""
BOOTSTRAP = """
import sys
if sys.version_info < (3, 11):
    sys.exit("Python %d.%d is too old; install Python 3.11 or newer there" % sys.version_info[:2])
import json, types
modules = json.loads(sys.stdin.buffer.read(int(sys.stdin.buffer.read(10))))
for name, source in modules:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.exit(module.main())
"""
"""The program that loads the sent modules; old Python versions can parse it, too."""
CHUNK = 1 << 20
STOP_S = 10.0
AGAIN = "the same command goes on"


class DeviceChannel:
    """The process on the device. `ask` and `put` raise UserError if the device refuses the step or is not reachable."""

    def __init__(
        self, process: subprocess.Popen[bytes], errors: IO[bytes], where: str, target: SshTarget | None
    ) -> None:
        self._process, self._errors, self._where, self._target = process, errors, where, target

    def ask(self, step: str, **arguments: Any) -> Any:
        """The answer to a step (`tasks.deploy.device_side.steps`)."""
        self._send(_message([step, arguments]))
        return self._answer()

    def put(self, place: str, file: Path, sha256: str, size: int) -> None:
        """Send a file to a place in the deployment's folder."""
        self._send(_message(["put", {"place": place, "digest": sha256, "size": size}]))
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                self._send(chunk)
        self._answer()

    def _send(self, content: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(content)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._answer()  # the process has ended; its last answer gives the reason
            raise self._lost() from None

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._lost() from None
        if "refused" in answer:
            raise UserError(self._where, answer["refused"])
        return answer["found"]

    def _lost(self) -> UserError:
        """The error for an ended process, with the last line of its output."""
        _stop(self._process)
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        line = said[-1] if said else f"the connection was lost (code {self._process.returncode}); {AGAIN}"
        return UserError(self._where, explained(line, self._target) if self._target else line)


@contextmanager
def open_channel(where: str, python: str | None, target: SshTarget | None) -> Iterator[DeviceChannel]:
    """The channel to a device, until the block ends. target: None: this machine. python: None: the target's interpreter."""
    if target is None:
        command = [python or sys.executable, "-c", BOOTSTRAP]
    else:
        if shutil.which("ssh") is None:
            raise UserError(where, "no 'ssh' on this machine", next_step="install the OpenSSH client")
        remote = shlex.join([python or target.python, "-c", BOOTSTRAP])
        command = [*target.arguments(Path("none")), "--", target.destination, remote]
    with tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        except OSError as error:
            raise UserError(where, f"no Python at '{command[0]}'", next_step="deploy.python=PATH") from error
        channel = DeviceChannel(process, errors, where, target)
        try:
            channel._send(
                _message([(module.__name__, Path(str(module.__file__)).read_text("utf-8")) for module in SENT])
            )
            yield channel
        finally:
            _stop(process)


def _message(value: Any) -> bytes:
    content = json.dumps(value).encode()
    return f"{len(content):0{answering.LENGTH_DIGITS}d}".encode() + content


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Close the process's stdin, so that it ends by itself; terminate it if it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.wait()
    process.stdout.close()
