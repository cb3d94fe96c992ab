"""Places at URLs, a fresh one for each test."""

import getpass
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.agents.ssh_server import SshServer, find_sshd, started_sshd
from tests.support.storage.gcs_server import HAS_GCS, REASON, gcs_served
from tests.support.storage.server import S3


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """XDG_CACHE_HOME in a temporary folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def bucket(s3: S3) -> str:
    """A URL on the server, with nothing below it."""
    return f"{s3.url}/{uuid4().hex}"


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with started_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a bucket at a server of Google's JSON API."""
    if not HAS_GCS:
        pytest.skip(REASON)
    with gcs_served(tmp_path_factory.mktemp("gcs")) as url:
        yield url


def _at_home(server: SshServer, home: Path) -> None:
    """A home whose ssh gets into the server and knows it."""
    (home / ".ssh").mkdir(parents=True)
    shutil.copy(server.identity, home / ".ssh" / "id_ed25519")
    shutil.copy(server.known_hosts, home / ".ssh" / "known_hosts")


@pytest.fixture(params=["s3", "gs", "ssh", "file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A URL of each protocol that is tried, with nothing below it."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3').url}/{uuid4().hex}"
    if request.param == "gs":
        return f"{request.getfixturevalue('gcs')}/{uuid4().hex}"
    if request.param == "ssh":
        if find_sshd() is None:
            pytest.skip("no sshd is installed")
        server = request.getfixturevalue("sshd")
        _at_home(server, tmp_path / "home")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        return f"ssh://{getpass.getuser()}@127.0.0.1:{server.port}{tmp_path}/shared"
    return f"file://{tmp_path}/shared" if request.param == "file" else f"memory://{uuid4().hex}"
