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
from tasks.operations.fleet.devices import BundleStore, new_enrolment
from tasks.operations.fleet.registry import Registry

RELAY_TOKEN = "token-of-those-who-measure"
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
def served_registry(folder: Path, plain_bundle: Path, database: str | None = None) -> Iterator[ServedRegistry]:
    """A registry with one bundle. database: None: a SQLite file of its own."""
    database = database or f"sqlite:///{folder}/fleet.db"
    registry = Registry.open(database)
    bundle = BundleStore(folder / "files").add(registry, plain_bundle, "plain")
    with serving("serve", [f"database={database}", f"files={folder}/files", "port=0"], folder) as url:
        yield ServedRegistry(url, registry, bundle, folder / "serve.log")
    registry.close()


@contextmanager
def served_relay(folder: Path, database: str) -> Iterator[str]:
    """The address of a relay for the devices of a registry."""
    file = folder / "relay-token"
    file.touch(mode=0o600)
    file.write_text(RELAY_TOKEN)
    with serving("relay", [f"database={database}", f"token_file={file}", "relay_port=0"], folder) as url:
        yield url


@contextmanager
def serving(action: str, options: list[str], folder: Path) -> Iterator[str]:
    """The address of `autotailor fleet ACTION`, which ends as it should with the block."""
    command = [sys.executable, "-m", "flows.cli", "fleet", action, *options]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (Path(__file__).resolve().parents[3], *sys.path[1:])))
    }
    with (folder / f"{action}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder, env=environment)
    assert process.stdout is not None
    line = next((line for line in process.stdout if " ready: " in line), "")
    assert line, (folder / f"{action}.log").read_text()
    try:
        yield line.rpartition(" ready: ")[2].strip()
    finally:
        process.terminate()
        ended = process.wait(120)
        process.stdout.close()
    assert ended == 0
