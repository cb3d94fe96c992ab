"""A server of Google's JSON API for tests: fake-gcs-server, where its program and the package gcsfs are installed.

It keeps the condition `ifGenerationMatch=0` and its write together, as Google does.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from tests.support.flows.prefect_server import wait_for
from tests.support.ports import free_port

PROGRAM = shutil.which("fake-gcs-server")
HAS_GCS = PROGRAM is not None and find_spec("gcsfs") is not None
REASON = "no fake-gcs-server on PATH, or no gcsfs: pip install -e '.[cloud]'"
BUCKET = "fleet"


@contextmanager
def gcs_served(folder: Path) -> Iterator[str]:
    """The URL of a bucket while the block runs; the environment of this process and of its children names the server."""
    assert PROGRAM is not None
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    words = f"-backend memory -scheme http -host 127.0.0.1 -port {port} -external-url {address}".split()
    with (
        (folder / "log.txt").open("w") as log,
        subprocess.Popen([PROGRAM, *words], stdout=log, stderr=log) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        try:
            wait_for(lambda: _has_bucket(address), "fake-gcs-server")
            patch.setenv("STORAGE_EMULATOR_HOST", address)
            patch.setenv(
                "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false"
            )  # which asks Google itself of what kind a bucket is
            yield f"gs://{BUCKET}"
        finally:
            process.kill()


def _has_bucket(address: str) -> bool:
    try:
        return httpx.post(f"{address}/storage/v1/b", json={"name": BUCKET}, trust_env=False).is_success
    except httpx.TransportError:
        return False
