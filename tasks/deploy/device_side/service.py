"""The service in a deployment's folder (start, stop, readiness), and the environment into which the run time is installed."""

import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zipfile
from contextlib import suppress

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


MARK = "installed"


def is_installed(target: str) -> bool:
    """Whether an environment is complete."""
    return os.path.exists(os.path.join(target, MARK))


def install(target: str, packages: str, wheel: str, extra: str, kind: str, offline: bool) -> None:
    """Make the environment in folder `target`, unless it is complete, from the wheel in folder `packages`.

    kind: "unpack" only unpacks the wheel's modules. offline: all other wheels come from `packages`, too.
    """
    if is_installed(target):
        return
    shutil.rmtree(target, ignore_errors=True)
    package = os.path.join(packages, wheel)
    if kind == "unpack":
        with zipfile.ZipFile(package) as archive:
            archive.extractall(target)
    else:
        try:
            program([sys.executable, "-m", "venv", target])
        except StepRefused as refused:
            hint = "install it there (Debian: apt-get install python3-venv), or deploy.install=unpack"
            raise StepRefused(f"'python3 -m venv' fails ({refused}); {hint}") from refused
        words = [os.path.join(target, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--no-input"]
        words += ["--disable-pip-version-check", *(["--no-index", "--find-links", packages] if offline else [])]
        try:
            program([*words, f"{package}[{extra}]"])
        except StepRefused as refused:
            hint = "deploy.wheels=FOLDER installs without a network"
            if offline:
                hint = "deploy.wheels needs the wheels of all dependencies, for the Python and the processor there"
            raise StepRefused(f"pip fails ({refused}); {hint}") from refused
    write(os.path.join(target, MARK), "")


POLL_S = 0.1
EXEC_LOOKS = 20
STOP_S = 35.0
"""When stopped, the service answers its accepted requests, for 30 s at most."""
KILL_S = 5.0
ASK_S = 5.0
ROUTE = "/v2/health/ready"
READY = re.compile(r"service ready: (.+)")
UNIX = "unix:"
"""Begins the address of a service without a port; the path of its Unix socket follows."""
UNIT = """\
[Unit]
Description=AutoTailor: the SubNets of a bundle in {root}
After=network.target
StartLimitIntervalSec=600
StartLimitBurst=20

[Service]
ExecStart=/bin/sh "{root}/current/serve"
Restart=on-failure
RestartSec=1
StandardOutput=append:{root}/service.log
StandardError=append:{root}/service.log

[Install]
WantedBy=default.target
"""
"""systemd restarts a service that ends, up to 20 times in ten minutes, since several SubNets may crash one after the other."""


class Service:
    """The service of a folder: a unit of the user's systemd if systemd runs, else a process with a pid file."""

    def __init__(self, root: str) -> None:
        self.root, self.log = root, os.path.join(root, "service.log")
        self.unit = f"autotailor-{re.sub('[^A-Za-z0-9]+', '-', root).strip('-')}.service"
        self.by_systemd = shutil.which("systemctl") is not None and _succeeds("systemctl", "--user", "show-environment")
        self._pid_file = os.path.join(root, "service.pid")

    def start(self) -> None:
        """Start the release that `current` links to, with a new log; the log of the run before is kept beside it."""
        if os.path.exists(self.log):
            os.replace(self.log, f"{self.log}.1")
        if self.by_systemd:
            self._start_unit()
            return
        with open(self.log, "ab") as log:
            words = ["/bin/sh", os.path.join(self.root, "current", "serve")]
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.root, start_new_session=True
            )
        write(self._pid_file, str(process.pid))

    def _start_unit(self) -> None:
        folder = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "systemd", "user")
        os.makedirs(folder, exist_ok=True)
        write(os.path.join(folder, self.unit), UNIT.format(root=self.root))
        program(["systemctl", "--user", "daemon-reload"])
        _succeeds("systemctl", "--user", "reset-failed", self.unit)  # earlier starts must not count
        program(["systemctl", "--user", "enable", self.unit])
        program(["systemctl", "--user", "restart", self.unit])
        if shutil.which("loginctl") is not None:
            _succeeds("loginctl", "enable-linger")  # the unit also runs while the user is not logged in

    def is_running(self) -> bool:
        """Whether the service has been started and has not ended."""
        if self.by_systemd:
            return _succeeds("systemctl", "--user", "is-active", "--quiet", self.unit)
        return self._pid() is not None

    def _pid(self) -> int | None:
        """The service's pid; None if the service has ended. Another process may have the recorded pid by now."""
        try:
            with open(self._pid_file, encoding="utf-8") as stream:
                pid = int(stream.read())
            with suppress(ChildProcessError):  # a process of an earlier deployment is no child of this one
                os.waitpid(pid, os.WNOHANG)
            return pid if os.fsencode(self.root) in _command_line(pid) else None
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        """Ask the service to end; kill it if it does not."""
        if self.by_systemd:
            _succeeds("systemctl", "--user", "stop", self.unit)
            return
        for number, within_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, KILL_S)):
            if (pid := self._pid()) is None:
                return
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            until = time.monotonic() + within_s
            while self._pid() is not None and time.monotonic() < until:
                time.sleep(POLL_S)

    def address(self) -> str | None:
        """The address at which the service reports ready; None if it does not."""
        found = READY.search(self._said())
        if found is None or not self.is_running():
            return None
        path = found[1].removeprefix(UNIX)
        is_ready = self._is_ready(found[1]) if path == found[1] else _is_ready_by_socket(path)
        return found[1] if is_ready else None

    def _is_ready(self, address: str) -> bool:
        url = urllib.parse.urlsplit(address)
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(url.hostname or "", url.netloc.rpartition(":")[0])
        asked = urllib.request.Request(f"{url.scheme}://{host}:{url.port}{ROUTE}")
        asked.add_header("Authorization", f"Bearer {self._token()}")
        context = ssl._create_unverified_context()  # the request stays on this machine
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        try:
            with opener.open(asked, timeout=ASK_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def wait_until_ready(self, within_s: float) -> str:
        """The service's address. StepRefused with the last line of the log if it ended or is not ready in time."""
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if (address := self.address()) is not None:
                return address
            if not self.by_systemd and not self.is_running():  # systemd starts it again
                raise StepRefused(f"the service ended before it was ready ({self._last_line()})")
            time.sleep(POLL_S)
        raise StepRefused(f"the service is not ready after {within_s:g} s ({self._last_line()})")

    def _said(self) -> str:
        try:
            with open(self.log, encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except OSError:
            return ""

    def _last_line(self) -> str:
        lines = self._said().strip().splitlines()
        return lines[-1] if lines else "its log is empty"

    def _token(self) -> str:
        with open(os.path.join(self.root, "current", "release.json"), encoding="utf-8") as stream:
            words = json.load(stream)["serve"]
        with open(words[words.index("--token-file") + 1], encoding="utf-8") as stream:
            return stream.read().strip()


def _is_ready_by_socket(path: str) -> bool:
    connection = http.client.HTTPConnection("localhost")
    try:
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.settimeout(ASK_S)
            connection.sock.connect(path)
            connection.request("GET", ROUTE)
            return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


def _command_line(pid: int) -> bytes:
    """The command line of a process; OSError: it has ended. During `exec`, the command line is empty for a moment."""
    found = b""
    for _ in range(EXEC_LOOKS):
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            found = stream.read()
        if found:
            break
        time.sleep(POLL_S / EXEC_LOOKS)
    return found


def _succeeds(*words: str) -> bool:
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
