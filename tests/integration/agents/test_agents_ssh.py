"""Agents over ssh, against a real sshd on loopback that the tests start."""

import ast
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from flows.config import DeviceProfile, SshSettings
from flows.pipeline.devices import Devices
from profiling_agents.client import AgentError, far_side, ssh
from profiling_agents.client.ssh import SshTarget, ssh_agent
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes
from tests.support.agents.ssh_server import SshServer, find_sshd, started_sshd

RUN_TOLERANCE = 1e-5
needs_sshd = pytest.mark.skipif(find_sshd() is None, reason="no sshd on this machine: apt-get install openssh-server")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with started_sshd(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def target(server: SshServer) -> SshTarget:
    return server.target


def far_agents(server: SshServer) -> list[psutil.Process]:
    """What runs at the far end: the bootstrap, the service, its worker."""
    below = psutil.Process(server.process.pid).children(recursive=True)
    return [one for one in below if "profiling" in " ".join(processes.command_of(one))]


def leftovers() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("autotailor-ssh-*"))


@needs_sshd
def test_a_bare_device_measures_and_runs_over_ssh_and_nothing_stays(server: SshServer, target: SshTarget) -> None:
    before = leftovers()
    job = models.convolution("ncnn", "conv", channels_in=5, channels_out=9, size=7, seed=3)
    x = np.random.default_rng(1).standard_normal((1, 5, 7, 7), dtype=np.float32)
    with ssh_agent(target, "ncnn", options=["--wall-limit-s", "20"]) as client:
        assert client.capabilities().wall_limit_s == 20
        assert client.url.startswith("http://127.0.0.1:")
        (output,) = client.run(job, [x])
        results = list(client.measure([models.convolution("ncnn", f"{index}") for index in range(20)]))
        assert processes.soon(lambda: len(far_agents(server)) == 3), "those of other tests may still be ending"
        agents = far_agents(server)
        source = Path(agents[1].cwd())
        assert source.name.startswith("autotailor-ssh-")
        made = {source} | (leftovers() - before)
        assert source.stat().st_mode & 0o077 == 0
        (listening,) = [c for c in agents[1].net_connections() if c.status == psutil.CONN_LISTEN]
        assert listening.laddr.ip == "127.0.0.1"
    reference = models.convolution_reference(x, *models.convolution_weights(5, 9, seed=3))
    assert np.abs(output - reference).max() <= RUN_TOLERANCE * np.abs(reference).max()
    assert {result.state for result in results} == {"ok"}
    assert processes.soon(lambda: not any(one.is_running() for one in agents))
    assert processes.soon(lambda: not any(folder.exists() for folder in made))


@needs_sshd
def test_the_token_is_on_no_command_line(server: SshServer, target: SshTarget) -> None:
    with ssh_agent(target, "ncnn") as client:
        token = client._transport._http.headers["Authorization"].removeprefix("Bearer ")
        everything = [one for one in psutil.process_iter() if token in " ".join(processes.command_of(one))]
        assert len(token) == 64
        assert everything == []


@needs_sshd
def test_the_far_agent_ends_when_the_connection_dies(server: SshServer, target: SshTarget) -> None:
    with ssh_agent(target, "ncnn") as client:
        agents = far_agents(server)
        (connection,) = [one for one in psutil.Process().children() if one.name() == "ssh"]
        connection.kill()
        assert processes.soon(lambda: not any(one.is_running() for one in agents))
        with pytest.raises(AgentError, match="not reachable"):
            list(client.measure([models.convolution("ncnn", "conv")]))


@pytest.mark.long
def test_an_agent_whose_parent_falls_silent_stops() -> None:
    with processes.started(
        ["--backend", "ncnn", "--port", "0", "--stop-with-stdin", "--silence-limit-s", "8"], stdin=True
    ) as (process, _):
        assert process.stdin is not None
        for _ in range(18):  # longer than the limit in all
            process.stdin.write("\n")
            process.stdin.flush()
            assert not processes.soon(lambda: process.poll() is not None, within_s=0.5)
        assert processes.soon(lambda: process.poll() is not None)
        assert process.returncode == 0


@needs_sshd
def test_unknown_host_keys_are_refused_in_one_line(target: SshTarget, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.touch()
    stranger = replace(target, options={**target.options, "UserKnownHostsFile": str(empty)})
    with (
        pytest.raises(AgentError, match=r"Host key verification failed.*compare the key") as caught,
        ssh_agent(stranger, "ncnn"),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert empty.read_text() == ""


@needs_sshd
def test_foreign_keys_are_refused_in_one_line(target: SshTarget, server: SshServer) -> None:
    with (
        pytest.raises(AgentError, match=r"Permission denied.*authorized_keys"),
        ssh_agent(replace(target, identity=server.identity.with_name("host")), "ncnn"),
    ):
        pass


@needs_sshd
@pytest.mark.parametrize("python", ["/nowhere/python3", "it's not; touch there"])
def test_a_device_without_python_is_one_line(target: SshTarget, python: str) -> None:
    with (
        pytest.raises(AgentError, match=r"is Python there\? set its path"),
        ssh_agent(replace(target, python=python), "ncnn"),
    ):
        pass


@needs_sshd
def test_missing_modules_are_named_with_what_to_do(target: SshTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ssh.BACKEND_MODULES, "ncnn", ("ncnn", "no_such_module"))
    with (
        pytest.raises(AgentError, match="lacks no_such_module; install with pip: no_such_module"),
        ssh_agent(target, "ncnn"),
    ):
        pass


@needs_sshd
def test_a_refusal_of_the_agent_itself_arrives(target: SshTarget) -> None:
    with (
        pytest.raises(AgentError, match=r"--threads: got 4096; allowed: 1 to"),
        ssh_agent(target, "ncnn", threads=4096),
    ):
        pass


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh on this machine: apt-get install openssh-client")
def test_a_port_without_a_server_is_one_line() -> None:
    with (
        pytest.raises(AgentError, match=r"ssh nobody@127.0.0.1: .*Connection refused"),
        ssh_agent(SshTarget(destination="nobody@127.0.0.1", port=1), "ncnn"),
    ):
        pass


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"destination": "-oProxyCommand=touch /tmp/x"}, "allowed: HOST or USER@HOST"),
        ({"destination": ""}, "allowed: HOST or USER@HOST"),
        ({"destination": "a b"}, "without spaces"),
        ({"destination": "a", "options": {"ProxyCommand": "touch x"}}, "ssh option 'ProxyCommand': not taken"),
        ({"destination": "a", "options": {"StrictHostKeyChecking": "no"}}, "'StrictHostKeyChecking': not taken"),
        ({"destination": "a", "options": {"LocalCommand": "x"}}, "not taken from a device profile"),
    ],
)
def test_targets_that_would_run_something_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        SshTarget(**fields)


def test_ssh_is_told_to_check_host_keys_and_never_to_ask(tmp_path: Path) -> None:
    words = SshTarget(destination="a", options={"HostKeyAlias": "board"}).arguments(tmp_path)
    assert "StrictHostKeyChecking=yes" in words
    assert "BatchMode=yes" in words
    assert words.index("StrictHostKeyChecking=yes") < words.index("HostKeyAlias=board")


def test_the_list_of_modules_is_what_the_service_imports() -> None:
    """All third-party imports of the package, backends apart, are looked for on the device."""
    found = set()
    for path in ssh.PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add((node.module or "").partition(".")[0])
    third_party = found - set(sys.stdlib_module_names) - {"profiling_agents", "importing"}  # both are sent
    assert third_party <= set(ssh.SERVICE_MODULES)


@pytest.mark.long
def test_the_far_side_can_be_read_by_old_pythons() -> None:
    ast.parse(Path(far_side.__file__).read_text(), feature_version=(3, 7))


@pytest.mark.long
@needs_sshd
def test_a_device_of_a_run_may_be_reached_over_ssh(server: SshServer, target: SshTarget) -> None:
    settings = SshSettings(
        host=target.destination,
        port=target.port,
        identity=target.identity,
        python=target.python,
        options=dict(target.options),
    )
    profile = DeviceProfile(backend="ncnn", ssh=settings)
    with Devices({"board": profile}) as devices:
        assert devices.capabilities("board").backend == "ncnn"
        with devices.meter("board") as meter:
            (result,) = meter.measure([models.convolution("ncnn", "conv")])
        assert result.state == "ok"
        assert processes.soon(lambda: len(far_agents(server)) == 3), "those of other tests may still be ending"
        agents = far_agents(server)
    assert processes.soon(lambda: not any(one.is_running() for one in agents))
