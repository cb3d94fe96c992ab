"""Agents started by their client: on bare Linux devices over ssh, and as a separate process on this machine.

Over ssh, agents are copied to the device, started on its loopback, and reached through a tunnel. One connection carries
everything: the agent's source and token on stdin, its address on stdout, the tunnel beside them. The agent ends when
stdin closes or falls silent, so a dead connection leaves nothing behind. Host keys are checked, the user's ssh
configuration applies, nothing is ever asked (BatchMode). A local agent cannot outlive its parent.
"""

import json
import os
import secrets
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from profiling_agents.backends import BACKEND_MODULES
from profiling_agents.client import far_side
from profiling_agents.messages import AgentError
from profiling_agents.startup import IMPORTING, PACKAGE, READY, TOKEN_VARIABLE, python_path

if TYPE_CHECKING:
    from profiling_agents.client.agent import AgentClient

START_LIMIT_S = 180.0
STOP_LIMIT_S = 8.0
LOCAL_PATIENCE_S = 2.0
"""An agent on this machine that does not answer for this long has ended and will not come back."""


@contextmanager
def local_agent(
    backend: str = "ncnn",
    threads: int = 1,
    *,
    cores: Sequence[int] | None = None,
    options: Sequence[str] = (),
    token: str = "",
) -> Iterator["AgentClient"]:
    """An agent as a separate process on loopback, and its client; it ends with the block, and when this process dies.

    options: further options of `autotailor agent`, for example limits. token: of the agent; empty: a random one.
    """
    from profiling_agents.client.agent import AgentClient

    token = token or secrets.token_hex(32)
    command = [sys.executable, "-P", "-m", "profiling_agents", *_arguments(backend, threads)]
    if cores is not None:
        command += ["--cores", ",".join(map(str, cores))]
    environment = os.environ | {TOKEN_VARIABLE: token, "PYTHONPATH": python_path(os.environ)}
    with tempfile.TemporaryFile() as errors:
        # stdin stays open as long as this process lives; the agent stops when it closes.
        process = subprocess.Popen(
            [*command, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        )
        try:
            url = wait_until_ready(process, errors, "local agent")
            with AgentClient(url, token, patience_s=LOCAL_PATIENCE_S) as client:
                yield client
        finally:
            stop(process)


def wait_until_ready(process: subprocess.Popen[bytes], errors: IO[bytes], where: str) -> str:
    """The address that the agent prints when it listens; AgentError with the agent's own line when it does not start."""
    assert process.stdout is not None
    until = time.monotonic() + START_LIMIT_S
    readable, _, _ = select.select([process.stdout], [], [], START_LIMIT_S)
    line = process.stdout.readline().decode() if readable else ""
    if line.startswith(READY):
        return line.removeprefix(READY).strip()
    if time.monotonic() >= until:
        raise AgentError(f"{where}: not ready after {START_LIMIT_S:g} s")
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise AgentError(f"{where}: printed '{line.strip()[:80]}' instead of its address") from error
    errors.seek(0)
    said = errors.read().decode(errors="replace").strip().splitlines()
    raise AgentError(f"{where}: {said[-1] if said else f'ended with code {process.returncode}'}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end; kill it if it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        process.stdout.close()


SILENCE_LIMIT_S = 30
BEAT_S = 5.0
TUNNEL_LIMIT_S = 15.0
TUNNEL_ATTEMPTS = 3
PATIENCE_S = 5.0
"""A tunnel that is refused for this long is gone; only a new connection brings it back."""
SERVICE_MODULES = ("h11", "httpx", "numpy", "psutil", "pydantic", "starlette", "uvicorn")
OPTIONS = (
    "AddressFamily",
    "Ciphers",
    "Compression",
    "ConnectTimeout",
    "GlobalKnownHostsFile",
    "HostKeyAlgorithms",
    "HostKeyAlias",
    "IdentitiesOnly",
    "KexAlgorithms",
    "ProxyJump",
    "PubkeyAuthentication",
    "UserKnownHostsFile",
)
"""Options of ssh that a device profile may set: none of them runs a command or weakens the check of host keys."""
OWN_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "ControlPersist=no",
    "ForwardAgent=no",
    "ForwardX11=no",
    "RequestTTY=no",
    "PermitLocalCommand=no",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """The target of ssh: `destination` is [user@]host, `python` the interpreter there. AgentError for unsafe values."""

    destination: str
    port: int | None = None
    identity: Path | None = None
    python: str = "python3"
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.destination or self.destination.startswith("-") or not self.destination.isprintable():
            raise AgentError(f"ssh: got destination '{self.destination}'; allowed: HOST or USER@HOST")
        if any(char.isspace() for char in self.destination):
            raise AgentError(f"ssh: got destination '{self.destination}'; allowed: HOST or USER@HOST, without spaces")
        foreign = [name for name in self.options if name.lower() not in {option.lower() for option in OPTIONS}]
        if foreign:
            raise AgentError(
                f"ssh option '{foreign[0]}': not taken from a device profile; allowed: {', '.join(OPTIONS)}; "
                "others go into your ~/.ssh/config"
            )

    def arguments(self, control: Path) -> list[str]:
        """`ssh` and its options, without the destination."""
        words = ["ssh", "-S", str(control)]
        for option in (*OWN_OPTIONS, *(f"{name}={value}" for name, value in self.options.items())):
            words += ["-o", option]
        if self.port is not None:
            words += ["-p", str(self.port)]
        if self.identity is not None:
            words += ["-i", str(self.identity)]
        return words


@contextmanager
def ssh_agent(
    target: SshTarget, backend: str, threads: int = 1, *, options: Sequence[str] = ()
) -> Iterator["AgentClient"]:
    """The client of an agent on the device, which ends with the block, with this process, or with the connection.

    `options`: further options of `autotailor agent`. AgentError with one line when it cannot be started.
    """
    from profiling_agents.client.agent import AgentClient

    if shutil.which("ssh") is None:
        raise AgentError("ssh: no 'ssh' on this machine; install the OpenSSH client")
    token = secrets.token_hex(32)
    remote = shlex.join([target.python, "-c", Path(far_side.__file__).read_text(encoding="utf-8")])
    with tempfile.TemporaryDirectory(prefix="autotailor-ssh-") as folder, tempfile.TemporaryFile() as errors:
        control = Path(folder) / "c"
        process = subprocess.Popen(
            [*target.arguments(control), "-M", "--", target.destination, remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        ended = threading.Event()
        try:
            words = [*_arguments(backend, threads), "--silence-limit-s", str(SILENCE_LIMIT_S), *options]
            _send(process, backend, words, token)
            threading.Thread(target=_beat, args=(process, ended), daemon=True).start()
            try:
                url = wait_until_ready(process, errors, f"ssh {target.destination}")
            except AgentError as error:
                raise AgentError(explained(str(error), target)) from error
            local = _tunnel(target, control, urlsplit(url).port)
            with AgentClient(local, token, patience_s=PATIENCE_S) as client:
                yield client
        finally:
            ended.set()
            stop(process)


def _arguments(backend: str, threads: int) -> list[str]:
    own = ["--backend", backend, "--threads", str(threads), "--host", "127.0.0.1", "--port", "0"]
    return [*own, "--stop-with-stdin"]


def _send(process: subprocess.Popen[bytes], backend: str, arguments: Sequence[str], token: str) -> None:
    """Send the agent's files and the token in the format of `far_side`. A lost connection shows in the output of ssh."""
    sources = {
        f"{package.name}/{path.relative_to(package)}": path.read_bytes()
        for package in (PACKAGE, IMPORTING)
        for path in package.rglob("*.py")
    }
    request = json.dumps(
        {
            "files": [(name, len(content)) for name, content in sources.items()],
            "modules": [*SERVICE_MODULES, *BACKEND_MODULES.get(backend, ())],
            "arguments": list(arguments),
            "token": token,
        }
    ).encode()
    assert process.stdin is not None
    try:
        for part in (f"{len(request):0{far_side.LENGTH_DIGITS}d}".encode(), request, *sources.values()):
            process.stdin.write(part)
        process.stdin.flush()
    except BrokenPipeError:
        process.wait()


def _beat(process: subprocess.Popen[bytes], ended: threading.Event) -> None:
    """Send a byte now and then, so that the agent can distinguish a dead connection from a quiet one."""
    assert process.stdin is not None
    while not ended.wait(BEAT_S):
        try:
            process.stdin.write(b"\n")
            process.stdin.flush()
        except (OSError, ValueError):
            return


def explained(line: str, target: SshTarget) -> str:
    """The error line of a failed connection, with a remedy."""
    if "Host key verification failed" in line or "host key is known" in line:
        line += "; connect once by hand and compare the key, or put it into a known_hosts file"
    elif "Permission denied" in line:
        line += "; a key that needs no passphrase now (ssh-agent) and is in the device's authorized_keys is needed"
    elif "not found" in line or "No such file" in line:
        line += f"; is Python there? set its path (python: {target.python})"
    return line


def _tunnel(target: SshTarget, control: Path, port: int | None) -> str:
    """URL on this machine's loopback that leads to the device's port."""
    for attempt in range(1, TUNNEL_ATTEMPTS + 1):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            local = probe.getsockname()[1]
        forward = f"127.0.0.1:{local}:127.0.0.1:{port}"
        done = subprocess.run(
            [*target.arguments(control), "-O", "forward", "-L", forward, "--", target.destination],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TUNNEL_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            return f"http://127.0.0.1:{local}"
        if attempt == TUNNEL_ATTEMPTS:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            raise AgentError(f"ssh {target.destination}: no tunnel to the agent; {said[-1] if said else 'no reason'}")
    raise AssertionError
