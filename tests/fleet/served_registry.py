"""A registry that runs as its command, for tests that ask it over HTTP."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from adaptive_runtime.fleet import EnrolAsked, Enrolled
from tasks.fleet.registry import BundleStore, Registry, new_enrolment

ASKED = EnrolAsked(name="kitchen", kind="camera", fingerprint="ab" * 32)


class ServedRegistry(NamedTuple):
    """A running registry, its database, and the digest of a bundle that it has."""

    url: str
    registry: Registry
    bundle: str
    log: Path

    def token(self) -> str:
        """To enrol with, once."""
        with self.registry.writing() as connection:
            return new_enrolment(connection, "me", valid_s=600)[0].token

    def post(self, path: str, token: str, content: str | bytes) -> httpx.Response:
        """With a token."""
        return httpx.post(f"{self.url}{path}", content=content, headers=bearer(token), timeout=120)

    def enrolled(self) -> Enrolled:
        """A new device."""
        answer = self.post("/v1/enrolments", self.token(), ASKED.model_dump_json())
        return Enrolled.model_validate_json(answer.raise_for_status().content)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@contextmanager
def served_registry(folder: Path, plain_bundle: Path) -> Iterator[ServedRegistry]:
    """A registry with one bundle."""
    registry = Registry.open(f"sqlite:///{folder}/fleet.db")
    with registry.writing() as connection:
        bundle = BundleStore(folder / "files").add(connection, plain_bundle, "plain")
    options = [f"database=sqlite:///{folder}/fleet.db", f"files={folder}/files", "port=0"]
    command = [sys.executable, "-m", "flows.cli", "fleet", "serve", *options]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("registry ready: "), (folder / "log").read_text()
    yield ServedRegistry(line.removeprefix("registry ready: ").strip(), registry, bundle, folder / "log")
    process.terminate()
    assert process.wait(120) == 0
    process.stdout.close()
    registry.close()
