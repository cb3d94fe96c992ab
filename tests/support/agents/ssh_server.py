"""A real sshd on a free port of loopback, with a host key and an authorized key of its own."""

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from profiling_agents.client.ssh import SshTarget
from tests.support.ports import free_port

PRIVILEGE_SEPARATION = Path("/run/sshd")


@dataclass(frozen=True)
class SshServer:
    """Where it listens, and the files that get in."""

    port: int
    identity: Path
    known_hosts: Path
    process: subprocess.Popen[bytes]

    @property
    def destination(self) -> str:
        return f"{getpass.getuser()}@127.0.0.1"

    @property
    def target(self) -> SshTarget:
        """How a client reaches it, with this process's Python."""
        return SshTarget(
            destination=self.destination,
            port=self.port,
            identity=self.identity,
            python=sys.executable,
            options={"UserKnownHostsFile": str(self.known_hosts), "IdentitiesOnly": "yes"},
        )


def find_sshd() -> str | None:
    """The server's program; it is not on everybody's PATH."""
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def make_key(path: Path) -> str:
    """A key without a passphrase; returns its public half."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path.with_name(path.name + ".pub").read_text()


@contextmanager
def started_sshd(folder: Path) -> Iterator[SshServer]:
    program = find_sshd()
    assert program is not None
    if os.getuid() == 0:
        PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
    host_key = make_key(folder / "host")
    authorized = folder / "authorized_keys"
    authorized.write_text(make_key(folder / "user"))
    authorized.chmod(0o600)
    port = free_port()
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nAuthorizedKeysFile {authorized}\n"
        "Subsystem sftp internal-sftp\n"
        "StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n"
    )
    known_hosts = folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{port} {host_key}")
    with (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen([program, "-D", "-e", "-f", str(config)], stdout=log, stderr=log)
    try:
        _wait(port, process)
        yield SshServer(port, folder / "user", known_hosts, process)
    finally:
        process.terminate()
        process.wait(60)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, "sshd ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("sshd does not listen")
