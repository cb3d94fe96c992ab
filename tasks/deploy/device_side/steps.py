"""The steps of a deployment on a device, and their requests on stdin and answers on stdout.

Each step may be killed at any time: it leaves the device consistent, and the same command resumes. A request is the
length of a JSON text as ten digits, then the text: [step, arguments]. After step `put` the file's bytes follow. An
answer is a line of JSON: {"found": …}, or {"refused": line}, after which the process ends.
"""

import errno
import fcntl
import hashlib
import json
import os
import platform
import secrets
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from typing import Any

from tasks.deploy.device_side.service import CHUNK, Service, StepRefused, install, is_installed, program, sha256, write

LOCK_S = 10.0
POLL_S = 0.1


class DeploymentSteps:
    """The steps of a deployment into one folder: each public method is a step, the first is `open`."""

    root = ""

    def open(self, folder: str) -> dict[str, Any]:
        """Create the folder, lock it for this deployment, and create a token in it if it has none."""
        self.root = os.path.abspath(os.path.expanduser(folder))
        for name in ("releases", "software", "packages"):
            os.makedirs(self._at(name), mode=0o700, exist_ok=True)
        self._lock()
        if not os.path.exists(self._at("token")):
            write(self._at("token"), secrets.token_hex(32) + "\n", 0o600)
        self._service = Service(self.root)
        return {"root": self.root, "python": [sys.executable, platform.python_version(), platform.machine()]}

    def missing(self, software: str, packages: dict[str, Any], release: str, bundle: dict[str, Any]) -> dict[str, Any]:
        """Places of the files to be sent, and free bytes. Files that the current release has, too, are linked instead."""
        installs = not is_installed(self._at("software", software))
        wanted = {f"packages/{name}": facts for name, facts in packages.items() if installs}
        places = [place for place, (digest, size) in wanted.items() if not _is(self._at(place), digest, size)]
        for name, (digest, size) in bundle.items():
            if not self._has(f"releases/{release}/bundle/{name}", digest, size):
                places.append(f"releases/{release}/bundle/{name}")
        return {"places": places, "free_bytes": shutil.disk_usage(self.root).free, "installs": installs}

    def _has(self, place: str, digest: str, size: int) -> bool:
        """Whether a release has a file of the bundle; links the current release's file into it if that is the same."""
        path, other = self._at(place), self._at("current", "bundle", os.path.basename(place))
        if _is(path, digest, size):
            return True
        if not _is(other, digest, size):
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(f"{path}.partial"):
            os.unlink(f"{path}.partial")
        os.link(other, f"{path}.partial")
        os.replace(f"{path}.partial", path)
        return True

    def put(self, place: str, digest: str, size: int) -> None:
        """Write a file atomically; its bytes follow on stdin."""
        path, found, left = self._at(place), hashlib.sha256(), size
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path}.partial", "wb") as stream:
            while left:
                chunk = sys.stdin.buffer.read(min(CHUNK, left))
                if not chunk:
                    raise StepRefused("the connection closed in the middle of a file; the same command goes on")
                stream.write(chunk)
                found.update(chunk)
                left -= len(chunk)
            stream.flush()
            os.fsync(stream.fileno())
        if found.hexdigest() != digest:
            raise StepRefused(f"'{place}' came there garbled; the same command goes on")
        os.replace(f"{path}.partial", path)

    def install(self, software: str, wheel: str, extra: str, kind: str, offline: bool) -> None:
        """Install the run time unless it is installed, then remove the packages."""
        install(self._at("software", software), self._at("packages"), wheel, extra, kind, offline)
        shutil.rmtree(self._at("packages"))
        os.mkdir(self._at("packages"), 0o700)

    def release(self, release: str, software: str, kind: str, serve: list[str], check: list[str]) -> None:
        """Write the release's program `serve` and its `release.json`. serve, check: command-line words after the bundle."""
        target, bundle = self._at("software", software), self._at("releases", release, "bundle")
        python = sys.executable if kind == "unpack" else os.path.join(target, "bin", "python")
        paths = target if kind == "unpack" else ""
        words = [python, "-P", "-m", "adaptive_runtime"]
        serve, check = ([os.path.expanduser(word) for word in each] for each in (serve, check))
        facts = {"software": software, "paths": paths, "serve": serve, "check": [*words, "check", bundle, *check]}
        line = " ".join(map(shlex.quote, [*words, "serve", bundle, *serve]))
        script = f"#!/bin/sh\n# Serves this release.\nexport PYTHONPATH={shlex.quote(paths)}\nexec {line}\n"
        write(self._at("releases", release, "serve"), script, 0o755)
        write(self._at("releases", release, "release.json"), json.dumps(facts, indent=1) + "\n")

    def check(self, release: str) -> list[str]:
        """Compare the answers. If they differ, the release is removed, unless it is the current one."""
        facts = self._facts(release)
        try:
            return program(facts["check"], facts["paths"]).splitlines()
        except StepRefused as refused:
            self._discard(release)
            raise StepRefused(f"{refused}; {self._left()}") from refused

    def activate(self, release: str, start: bool, ready_s: float) -> dict[str, Any]:
        """Switch to a release. If its service is not ready in time, the former release is restored, and serves if it did."""
        confirmed, current, service = self._confirmed(), self._current(), self._service
        former = current if current in confirmed else next(iter(confirmed), None)  # restored if this release fails
        served = service.is_running()
        address = service.address() if start and former == current == release else None
        self._point(release)
        if start and address is None:
            try:
                service.stop()
                service.start()
                address = service.wait_until_ready(ready_s)
            except (StepRefused, OSError) as refused:
                service.stop()
                if former is None:
                    os.unlink(self._at("current"))
                else:
                    self._point(former)
                self._discard(release)
                if former is not None and served:
                    service.start()
                raise StepRefused(f"{refused}; {self._left()}") from refused
        write(self._at("releases", release, "confirmed"), "")
        by = "systemd" if service.by_systemd else "process"
        return {"former": former, "address": address, "by": by if start else None}

    def clean(self, keep: int) -> list[str]:
        """Remove all releases except the current one and the latest others, and software that no kept release needs."""
        current = self._current()
        assert current is not None
        others = [name for name in self._confirmed() if name != current]
        kept = [current, *others[: keep - 1]]
        gone = sorted(set(os.listdir(self._at("releases"))).difference(kept))
        needed = {self._facts(name)["software"] for name in kept}
        unused = sorted(set(os.listdir(self._at("software"))) - needed)
        for path in [*(self._at("releases", name) for name in gone), *(self._at("software", name) for name in unused)]:
            shutil.rmtree(path)
        return gone

    def _lock(self) -> None:
        """Lock the folder as long as this process lives. The process of a killed deployment ends within moments."""
        self._held = os.open(self._at(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError as error:
                if time.monotonic() >= until:
                    raise StepRefused(f"'{self.root}' is in use by another deployment; wait for it") from error
            time.sleep(POLL_S)

    def _at(self, *names: str) -> str:
        return os.path.join(self.root, *names)

    def _facts(self, release: str) -> dict[str, Any]:
        with open(self._at("releases", release, "release.json"), encoding="utf-8") as stream:
            found: dict[str, Any] = json.load(stream)
        return found

    def _left(self) -> str:
        current = self._current()
        return "nothing is deployed there" if current is None else f"release {current} stays"

    def _current(self) -> str | None:
        path = self._at("current")
        return os.path.basename(os.readlink(path)) if os.path.islink(path) else None

    def _confirmed(self) -> list[str]:
        """Releases that were checked and activated, the latest first."""
        marks = {name: self._at("releases", name, "confirmed") for name in os.listdir(self._at("releases"))}
        found = [name for name, mark in marks.items() if os.path.exists(mark)]
        return sorted(found, key=lambda name: os.path.getmtime(marks[name]), reverse=True)

    def _point(self, release: str) -> None:
        """Let `current` link to a release, atomically."""
        temporary = self._at("current.partial")
        if os.path.islink(temporary):
            os.unlink(temporary)
        os.symlink(os.path.join("releases", release), temporary)
        os.replace(temporary, self._at("current"))

    def _discard(self, release: str) -> None:
        if release != self._current():
            shutil.rmtree(self._at("releases", release))


def _is(path: str, digest: str, size: int) -> bool:
    return os.path.isfile(path) and os.path.getsize(path) == size and sha256(path) == digest


LENGTH_DIGITS = 10


def line_of(error: Exception) -> str:
    """The error's message in one line."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no room is left there ({error.filename or error.strerror}); make some, or deploy.folder=ANOTHER"
    if isinstance(error, OSError) and error.filename is not None:
        return f"'{error.filename}': {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def main() -> int:
    """Answer requests until stdin ends or a step is refused."""
    steps, requests = DeploymentSteps(), sys.stdin.buffer
    while len(head := requests.read(LENGTH_DIGITS)) == LENGTH_DIGITS:
        step, arguments = json.loads(requests.read(int(head)))
        try:
            answer = {"found": getattr(steps, step)(**arguments)}
        except (StepRefused, OSError, subprocess.SubprocessError, zipfile.BadZipFile) as error:
            answer = {"refused": line_of(error)}
        print(json.dumps(answer), flush=True)
        if "refused" in answer:
            return 1
    return 0
