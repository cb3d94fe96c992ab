"""Agents on bare Linux devices over ssh: copied there, started on the device's loopback, reached through a tunnel.

One connection carries everything: the agent's source and token on stdin, its address on stdout, the tunnel beside
them. The agent ends when stdin closes or falls silent, so a dead connection leaves nothing behind. Host keys are
checked, the user's ssh configuration applies, nothing is ever asked (BatchMode).
"""

import json
import secrets
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from profiling_agents.backends import BACKEND_MODULES
from profiling_agents.client import far_side
from profiling_agents.client.local import stop, wait_until_ready
from profiling_agents.messages import AgentError
from profiling_agents.startup import IMPORTING, PACKAGE

if TYPE_CHECKING:
    from profiling_agents.client.agent import AgentClient

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
    with (
        tempfile.TemporaryDirectory(prefix="autotailor-ssh-") as folder,
        tempfile.TemporaryFile() as errors,
    ):
        control = Path(folder) / "c"
        process = subprocess.Popen(
            [*target.arguments(control), "-M", "--", target.destination, remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        ended = threading.Event()
        try:
            _send(process, backend, _arguments(backend, threads, options), token)
            threading.Thread(target=_beat, args=(process, ended), daemon=True).start()
            url = _started(process, errors, target)
            local = _tunnel(target, control, urlsplit(url).port)
            with AgentClient(local, token, patience_s=PATIENCE_S) as client:
                yield client
        finally:
            ended.set()
            stop(process)


def _arguments(backend: str, threads: int, options: Sequence[str]) -> list[str]:
    own = ["--backend", backend, "--threads", str(threads), "--host", "127.0.0.1", "--port", "0"]
    return [*own, "--stop-with-stdin", "--silence-limit-s", str(SILENCE_LIMIT_S), *options]


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


def _started(process: subprocess.Popen[bytes], errors: IO[bytes], target: SshTarget) -> str:
    where = f"ssh {target.destination}"
    try:
        return wait_until_ready(process, errors, where)
    except AgentError as error:
        raise AgentError(explained(str(error), target)) from error


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
        local = _free_port()
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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
