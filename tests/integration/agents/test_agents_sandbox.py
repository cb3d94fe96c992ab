"""The sandbox around the process of foreign models, tried on this kernel."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from profiling_agents.client import AgentClient, MeasureSettings, local_agent
from profiling_agents.sandbox import entering, seccomp
from tests.support.agents import agent_models as models
from tests.support.agents import agent_processes as processes

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "support" / "agents" / "in_sandbox.py"
ALLOWED = {
    "write into its folder",
    "read from its folder",
    "read the processor's facts",
    "signal itself",
    "fill random bytes",
}
OF_ACCELERATORS = {"make a local socket", "name a thread"}
"""What CUDA needs before it starts."""
OF_FILES = {
    "read a file beside its folder",
    "list the folder around its own",
    "write outside",
    "write over a file outside",
    "read /etc/passwd",
}
PLAIN_USER = 64950
QUICK = MeasureSettings(warmup_ms=1.0, time_cap_ms=10.0)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")


@dataclass(frozen=True)
class Place:
    """A folder of a service, that of its child, and what listens there."""

    outside: Path
    folder: Path
    port: int

    def tried(
        self, *, user: int | None = None, start_as: int = 0, lacking: tuple[int, ...] = (), accelerator: bool = False
    ) -> dict[str, Any]:
        """Results of the attempts in the sandbox."""
        owner = user or start_as
        if owner:
            for path in (self.folder, self.folder / "model"):
                os.chown(path, owner, owner)
        plan: dict[str, Any] = {"folder": str(self.folder), "user": user, "readable": [], "accelerator": accelerator}
        request = {
            "plan": plan,
            "outside": str(self.outside),
            "port": self.port,
            "user": start_as,
            "lacking": list(lacking),
        }
        done = subprocess.run(
            [sys.executable, str(SCRIPT), json.dumps(request)],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            cwd=self.folder,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture
def place() -> Iterator[Place]:
    """Open to all users: the sandbox is to refuse, not the folders."""
    outside = Path(tempfile.mkdtemp(prefix="autotailor-sandbox-"))
    folder = outside / "models"
    folder.mkdir()
    (outside / "secret").write_text("secret")
    (outside / "secret").chmod(0o666)
    outside.chmod(0o777)
    (folder / "model").write_text("model")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(outside / "socket"))
        local.listen()
        (outside / "socket").chmod(0o777)
        yield Place(outside, folder, server.getsockname()[1])
    shutil.rmtree(outside)


def assert_confined(found: dict[str, Any], allowed: set[str] = ALLOWED) -> None:
    assert {name for name, how in found["results"].items() if how == "done"} == allowed
    refused = {how for name, how in found["results"].items() if name not in allowed}
    assert refused <= {"PermissionError", "OSError"}  # OSError: a user namespace does not even know root


@as_root
def test_a_child_of_root_is_another_user_and_reaches_nothing_but_its_folder(place: Place) -> None:
    user = entering.free_user()
    assert user is not None
    found = place.tried(user=user)
    assert found["standing"] == ["network", "files", "user", "system calls"]
    assert found["missing"] == []
    assert found["user"] == user
    assert_confined(found)
    assert (place.outside / "secret").read_text() == "secret"
    assert not (place.outside / "new").exists()


def test_with_an_accelerator_a_child_makes_local_sockets_and_reaches_nobody_through_them(place: Place) -> None:
    found = place.tried(user=entering.free_user(), accelerator=True)
    assert {"network", "files", "system calls"} <= set(found["standing"])
    assert_confined(found, ALLOWED | OF_ACCELERATORS)


@as_root
def test_a_child_of_a_plain_user_reaches_nothing_but_its_folder(place: Place) -> None:
    found = place.tried(start_as=PLAIN_USER)
    assert found["standing"] == ["network", "files", "system calls"]
    assert found["user"] == PLAIN_USER
    assert_confined(found)


def test_without_landlock_the_other_parts_stand_and_what_is_missing_is_said(place: Place) -> None:
    found = place.tried(user=entering.free_user(), lacking=(entering.CREATE_RULESET,))
    assert {"network", "system calls"} <= set(found["standing"])
    (line,) = (line for line in found["missing"] if line.startswith("files: "))
    assert "models can read and write the files of their user (" in line
    done = {name for name, how in found["results"].items() if how == "done"}
    assert done >= ALLOWED
    assert done <= ALLOWED | OF_FILES | {"write a device's setting", "name a thread"}
    if os.geteuid() == 0 and found["user"] == 0:  # Python itself lies where no other user can read it
        line = "user: models run as root, with no right but to open files (another user cannot read"
        assert any(missing.startswith(line) for missing in found["missing"])


def test_without_namespaces_the_filter_of_calls_keeps_models_from_the_network(place: Place) -> None:
    unshare = seccomp.REFUSED["unshare"]
    column = seccomp.COLUMNS[os.uname().machine]
    found = place.tried(user=entering.free_user(), lacking=(unshare[column],))
    assert "network" not in found["standing"]
    assert any(line.startswith("network: models reach the network") for line in found["missing"])
    assert_confined(found)


def workers() -> set[psutil.Process]:
    """The children of all agents that this process has started."""
    own = psutil.Process().children(recursive=True)
    return {one for one in own if "profiling_agents.execution.worker" in processes.command_of(one)}


@pytest.fixture(params=["ncnn", "onnxruntime", "torch"])
def confined(request: pytest.FixtureRequest) -> Iterator[tuple[str, AgentClient, psutil.Process]]:
    before = workers()
    with local_agent(request.param) as client:
        (child,) = workers() - before
        yield request.param, client, child


@pytest.mark.few("ncnn")
def test_every_backend_measures_in_the_sandbox(confined: tuple[str, AgentClient, psutil.Process]) -> None:
    backend, client, child = confined
    sandbox = client.capabilities().walls
    assert {"network", "files", "system calls"} <= set(sandbox.standing)
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert int(status["CapEff"], 16) & ~(1 << 2) == 0  # reading files of others, within what Landlock allows
    assert os.readlink(f"/proc/{child.pid}/ns/net") != os.readlink("/proc/self/ns/net")
    if os.geteuid() == 0:
        assert status["Uid"].split()[0] not in ("0", "65534")
        assert status["Groups"].split() == []
    (found,) = client.measure([models.convolution(backend, "conv")], QUICK)
    assert found.state == "ok", found.reason


def test_an_agent_without_its_sandbox_says_so() -> None:
    options = ("--backend", "ncnn", "--port", "0", "--without-sandbox", "--stop-with-stdin")
    with subprocess.Popen(
        processes.command(*options),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=processes.environment(),
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().partition(": ")[2].strip()
        with AgentClient(url, processes.TOKEN) as client:
            sandbox = client.capabilities().walls
            (found,) = client.measure([models.convolution("ncnn", "conv")], QUICK)
        _, said = process.communicate(timeout=300)
    assert sandbox.standing == ()
    assert found.state == "ok"
    line = "all: models can do what the agent's user can (--without-sandbox)"
    assert sandbox.missing == (line,)
    assert said == f"the agent's sandbox lacks {line}\n"
