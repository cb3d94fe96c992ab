"""Deployments over ssh, to a real sshd on loopback that the tests start."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from profiling_agents.client.ssh import SshTarget
from tasks.base.errors import UserError
from tasks.deploy import run
from tests.support.agents.ssh_server import SshServer, find_sshd, started_sshd
from tests.support.deploy.deployments import current, unpacked

pytestmark = pytest.mark.skipif(find_sshd() is None, reason="no sshd on this machine: apt-get install openssh-server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with started_sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def target(server: SshServer) -> SshTarget:
    return server.target


def test_a_bundle_goes_over_ssh_once(target: SshTarget, tmp_path: Path, wheel: Path, bundle: Path) -> None:
    said: list[str] = []
    settings = unpacked(tmp_path / "it's there", wheel)
    found = run(settings, "board", bundle, target, said.append)
    release = tmp_path / "it's there" / "releases" / found["release"]
    assert {path.name: path.read_bytes() for path in (release / "bundle").iterdir()} == {
        path.name: path.read_bytes() for path in bundle.iterdir()
    }
    assert len(found["checked"]) == 2
    assert current(tmp_path / "it's there") == found["release"]
    assert run(settings, "board", bundle, target, said.append)["files_sent"] == 0


@pytest.mark.long
def test_a_device_that_is_not_reached_is_one_line(
    target: SshTarget, server: SshServer, tmp_path: Path, wheel: Path, bundle: Path
) -> None:
    refusals = {
        r"^device 'board': ssh: connect to host .* port 1: Connection refused": replace(target, port=1),
        r"^device 'board': .*Permission denied.*authorized_keys is needed": replace(
            target, identity=server.identity.with_name("host")
        ),
        r"^device 'board': .*/nowhere/python3.*; is Python there\? set its path": replace(
            target, python="/nowhere/python3"
        ),
    }
    for line, wrong in refusals.items():
        with pytest.raises(UserError, match=line) as caught:
            run(unpacked(tmp_path / "there", wheel), "board", bundle, wrong)
        assert "\n" not in str(caught.value)
