"""Deployments into a folder of this machine, by the process that also runs on a device."""

import ast
import errno
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import urllib.request
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from adaptive_runtime.base.errors import AdaptiveError
from adaptive_runtime.bundle.bundles import NetFigures, OpenBundle
from adaptive_runtime.cli import COMMANDS
from tasks.base.errors import UserError
from tasks.deploy import Settings, run
from tasks.deploy.deployment import BOOTSTRAP, SENT, _refuse_without_room, required_extras
from tasks.deploy.device_side.service import Service
from tasks.deploy.device_side.steps import DeploymentSteps, line_of
from tests.support.deploy.deployments import current, expect_other_answers, releases, stopped_at_the_end, unpacked
from tests.support.runtime.service_process import INFER, body, by_socket
from tests.support.threads import beside

needs_service = pytest.mark.skipif("serve" not in COMMANDS, reason="this version of the run time has no service")
KILLED = """
import os, signal
from pathlib import Path
from tasks.deploy import Settings, run

def say(line):
    if {word!r} in line:
        os.kill(os.getpid(), signal.SIGKILL)

run(Settings.model_validate_json({settings!r}), "board", Path({bundle!r}), None, say)
"""


def quietly(line: str) -> None:
    """Says nothing."""


def deployed(folder: Path, wheel: Path, bundle: Path, /, **changed: Any) -> dict[str, Any]:
    return {**run(unpacked(folder, wheel, **changed), "board", bundle, None, quietly)}


def test_a_release_is_copied_installed_checked_and_linked(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    said: list[str] = []
    found = run(unpacked(tmp_path, wheel), "board", bundle, None, said.append)
    release = tmp_path / "releases" / found["release"]
    assert current(tmp_path) == found["release"]
    assert {path.name: path.read_bytes() for path in (release / "bundle").iterdir()} == {
        path.name: path.read_bytes() for path in bundle.iterdir()
    }
    assert len(found["checked"]) == 2
    assert (found["former"], found["removed"], found["address"], found["by"]) == (None, [], None, None)
    assert [line.split(" ", 1)[1] for line in said] == [
        f"of 6 files are sent, {found['bytes_sent'] / 1e6:.1f} MB",
        "run time is installed, with onnxruntime",
        "answers are as expected",
    ]
    assert list((tmp_path / "packages").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert len((tmp_path / "token").read_text().strip()) == 64


@pytest.mark.long
def test_the_same_again_sends_nothing(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    first = deployed(tmp_path, wheel, bundle)
    again = deployed(tmp_path, wheel, bundle)
    assert (first["files_sent"], again["files_sent"]) == (6, 0)
    assert again["release"] == again["former"] == first["release"]


@pytest.mark.long
def test_the_next_bundle_is_a_release_beside_the_former_with_the_same_software(
    tmp_path: Path, wheel: Path, bundle: Path, small_bundle: Path
) -> None:
    first = deployed(tmp_path, wheel, bundle)
    second = deployed(tmp_path, wheel, small_bundle)
    assert second["former"] == first["release"] != second["release"] == current(tmp_path)
    assert releases(tmp_path) == {first["release"], second["release"]}
    assert len(list((tmp_path / "software").iterdir())) == 1
    shared = {path.name for path in small_bundle.iterdir() if (bundle / path.name).exists()}
    same = [name for name in shared if (bundle / name).read_bytes() == (small_bundle / name).read_bytes()]
    assert second["files_sent"] == len(list(small_bundle.iterdir())) - len(same)
    third = deployed(tmp_path, wheel, bundle, keep=1)
    assert (third["release"], third["files_sent"]) == (first["release"], 0)
    assert third["removed"] == [second["release"]]
    assert releases(tmp_path) == {first["release"]}


def test_the_runtimes_of_all_formats_in_which_a_bundle_serves_are_installed(bundle: Path) -> None:
    plain = OpenBundle.open(bundle).manifest
    assert required_extras(plain, None) == ("onnxruntime",)
    first, *others = plain.subnets
    figures = NetFigures(accuracy={"test": 0.5}, latency_ms=1.0, memory=first.memory)
    nets = {**first.nets, "ncnn": first.nets["onnx"].model_copy(update={"figures": figures})}
    subnets = (first.model_copy(update={"nets": nets}), *others)
    runs = {**plain.runs, "ncnn": plain.runs["onnx"]}
    several = plain.model_copy(update={"subnets": subnets, "runs": runs})
    assert required_extras(several, None) == ("onnxruntime", "ncnn")
    assert required_extras(several, "ncnn") == ("ncnn",)


@pytest.mark.long
def test_other_settings_of_the_service_are_another_release(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    first = deployed(tmp_path, wheel, bundle)
    second = deployed(tmp_path, wheel, bundle, budget_ms=5, socket=f"{tmp_path}/local")
    assert second["release"] != first["release"]
    assert second["files_sent"] == 0
    script = (tmp_path / "current" / "serve").read_text()
    assert "--budget-ms 5.0" in script
    assert f"--socket {tmp_path}/local" in script
    assert f"--token-file {tmp_path}/token" in script


@pytest.mark.few("nothing before")
@pytest.mark.parametrize("before", [False, True], ids=["nothing before", "a release before"])
def test_where_answers_differ_the_former_release_stays(
    tmp_path: Path, wheel: Path, bundle: Path, small_bundle: Path, before: bool
) -> None:
    other, there = tmp_path / "other", tmp_path / "there"
    shutil.copytree(bundle, other)
    expect_other_answers(other)
    former = deployed(there, wheel, small_bundle)["release"] if before else None
    left = f"release {former} stays" if before else "nothing is deployed there"
    with pytest.raises(UserError, match=rf"^device 'board': .*answers differ from the expected ones by .*; {left}$"):
        deployed(there, wheel, other)
    assert current(there) == former
    assert releases(there) == ({former} if before else set())


def test_a_bundle_that_is_damaged_here_is_refused_before_anything_is_sent(
    tmp_path: Path, wheel: Path, bundle: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(bundle, damaged)
    content = bytearray((damaged / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (damaged / "weights.safetensors").write_bytes(content)
    with pytest.raises(AdaptiveError, match=r"weights\.safetensors"):
        deployed(tmp_path / "there", wheel, damaged)
    assert not (tmp_path / "there").exists()


@pytest.mark.long
def test_a_file_that_is_damaged_there_is_sent_again_beside_the_old_one(
    tmp_path: Path, wheel: Path, bundle: Path
) -> None:
    deployed(tmp_path, wheel, bundle)
    file = tmp_path / "current" / "bundle" / "weights.safetensors"
    right = file.read_bytes()
    file.write_bytes(right[:-1] + bytes([right[-1] ^ 1]))
    with file.open("rb") as still_mapped:
        assert deployed(tmp_path, wheel, bundle)["files_sent"] == 1
        assert file.read_bytes() == right
        assert still_mapped.read() != right  # who serves from the old file keeps it


@pytest.mark.few("as expected")
@pytest.mark.parametrize("word", ["installed", "as expected"])
def test_killed_in_the_middle_the_same_call_goes_on(tmp_path: Path, wheel: Path, bundle: Path, word: str) -> None:
    settings = unpacked(tmp_path, wheel)
    text = KILLED.format(word=word, settings=settings.model_dump_json(), bundle=str(bundle))
    killed = subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert current(tmp_path) is None
    found = deployed(tmp_path, wheel, bundle)
    assert (found["files_sent"], found["former"]) == (0, None)
    assert current(tmp_path) == found["release"]


@pytest.mark.long
def test_half_a_file_does_not_count(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    release = deployed(tmp_path, wheel, bundle)["release"]
    (tmp_path / "current").unlink()
    weights = tmp_path / "releases" / release / "bundle" / "weights.safetensors"
    weights.with_name("weights.safetensors.partial").write_bytes(weights.read_bytes()[:100])
    weights.unlink()
    assert deployed(tmp_path, wheel, bundle)["files_sent"] == 1


@pytest.mark.long
def test_the_link_always_leads_to_a_whole_release(
    tmp_path: Path, wheel: Path, bundle: Path, small_bundle: Path
) -> None:
    names = [deployed(tmp_path, wheel, each)["release"] for each in (bundle, small_bundle)]
    steps, ended, seen = DeploymentSteps(), threading.Event(), []

    def look() -> None:
        while not ended.is_set():
            seen.append(json.loads((tmp_path / "current" / "bundle" / "bundle.json").read_bytes())["version"])

    with beside(look, over=ended):
        steps.open(str(tmp_path))
        for turn in count():
            if ended.is_set() or (turn >= 100 and len(seen) > 10):
                break
            assert steps.activate(names[turn % 2], start=False, ready_s=1)["former"] == names[1 - turn % 2]
    assert set(seen) == {2}


@pytest.mark.long
def test_a_release_that_was_never_confirmed_is_nothing_to_go_back_to(
    tmp_path: Path, wheel: Path, bundle: Path, small_bundle: Path
) -> None:
    first, second = (deployed(tmp_path, wheel, each)["release"] for each in (bundle, small_bundle))
    (tmp_path / "releases" / second / "confirmed").unlink()  # as if it was killed while the service started
    with pytest.raises(UserError, match=rf"the service ended before it was ready \(.*\); release {first} stays"):
        deployed(tmp_path, wheel, small_bundle, start=True, options=["--no-such-flag"])
    assert current(tmp_path) == first


@pytest.mark.long
def test_a_service_that_does_not_start_leaves_nothing(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    with (
        stopped_at_the_end(tmp_path) as service,
        pytest.raises(UserError, match=r"the service ended before it was ready .*; nothing is deployed there"),
    ):
        deployed(tmp_path, wheel, bundle, start=True, options=["--no-such-flag"])
    assert not service.is_running()
    assert current(tmp_path) is None
    assert releases(tmp_path) == set()


@pytest.mark.long
@needs_service
def test_the_service_serves_and_is_back_where_the_next_one_does_not_start(
    tmp_path: Path, wheel: Path, bundle: Path, small_bundle: Path
) -> None:
    with stopped_at_the_end(tmp_path) as service:
        first = deployed(tmp_path, wheel, bundle, start=True, socket=str(tmp_path / "local"))
        assert first["by"] == "process"
        with by_socket(tmp_path / "local") as client:
            assert client.post(INFER, **body(np.zeros((1, 3, 16, 16), np.float32))).status_code == 200
        assert metadata(tmp_path, first["address"])["inputs"][0]["shape"] == [-1, 3, 16, 16]
        again = deployed(tmp_path, wheel, bundle, start=True, socket=str(tmp_path / "local"))
        assert again["address"] == first["address"]  # it goes on, since nothing is new
        with pytest.raises(UserError, match=rf"before it was ready .*; release {first['release']} stays"):
            deployed(tmp_path, wheel, small_bundle, start=True, options=["--no-such-flag"])
        assert metadata(tmp_path, service.wait_until_ready(120))["name"] == "model"
        assert current(tmp_path) == first["release"]
        assert releases(tmp_path) == {first["release"]}


@pytest.mark.long
@needs_service
def test_a_service_without_a_port_is_ready_by_its_socket(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    with stopped_at_the_end(tmp_path):
        found = deployed(tmp_path, wheel, bundle, start=True, port=None, socket=str(tmp_path / "local"))
        assert found["address"] == f"unix:{tmp_path / 'local'}"
        with by_socket(tmp_path / "local") as client:
            assert client.get("/v2/models/model").json()["name"] == "model"


def test_a_service_has_a_port_or_a_socket_and_settings_of_a_port_need_one(tmp_path: Path) -> None:
    words = Settings(port=None, socket="/run/local").serve_words("/srv")
    assert words == ["--state", "/srv/state", "--socket", "/run/local"]
    with pytest.raises(ValidationError, match=r"port: null; give deploy\.socket, or a port"):
        Settings(port=None)
    for given in ({"host": "0.0.0.0"}, {"token_file": "/srv/token"}, {"tls_cert": "/srv/cert"}):
        with pytest.raises(ValidationError, match=f"{next(iter(given))}: needs a port; give one, or leave it out"):
            Settings.model_validate({"port": None, "socket": "/run/local", **given})


def metadata(folder: Path, address: str) -> dict[str, Any]:
    """What the service says of its model."""
    token = (folder / "token").read_text().strip()
    request = urllib.request.Request(f"{address}/v2/models/model", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def test_a_process_that_becomes_another_program_is_no_ended_service(tmp_path: Path) -> None:
    again = tmp_path / "again"
    again.write_text(f"exec /bin/sh {again}")
    with subprocess.Popen(["/bin/sh", again]) as process:
        service = Service(str(tmp_path))
        (tmp_path / "service.pid").write_text(str(process.pid))
        found = [service.is_running() for _ in range(5_000)]
        process.kill()
        process.wait()
        assert all(found)
        assert not service.is_running()


def test_a_second_deployment_into_one_folder_waits_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.deploy.device_side import steps

    monkeypatch.setattr(steps, "LOCK_S", 0.2)
    first, second = DeploymentSteps(), DeploymentSteps()
    first.open(str(tmp_path))
    with pytest.raises(Exception, match="is in use by another deployment; wait for it"):
        second.open(str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "line"),
    {
        "another format": ({"format": "ncnn"}, "deploy.format: the bundle has no files of ncnn; allowed: onnx"),
        "no Python": (
            {"python": "/nowhere/python3"},
            "device 'board': no Python at '/nowhere/python3'; deploy.python=PATH",
        ),
        "no interpreter": ({"python": "/bin/false"}, r"device 'board': the connection was lost \(code 1\)"),
        "no wheels": ({"wheels": Path("/nowhere")}, "deploy.wheels: '/nowhere' has no wheels; pip download -d FOLDER"),
        "no wheel": ({"wheel": Path("/nowhere.whl")}, r"'/nowhere.whl': cannot be read \(No such file or directory\)"),
        "no folder": ({"folder": "/proc/there"}, "device 'board': '/proc/there.*': No such file or directory"),
    }.values(),
)
def test_what_cannot_be_done_is_one_line(
    tmp_path: Path, wheel: Path, bundle: Path, changed: dict[str, Any], line: str
) -> None:
    with pytest.raises(UserError, match=f"^{line}") as caught:
        deployed(tmp_path, wheel, bundle, **changed)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_folder_of_wheels_that_lacks_one_is_one_line(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    with pytest.raises(
        UserError, match=r"^device 'board': pip fails \(.*numpy.*\); deploy\.wheels needs the wheels of all"
    ):
        deployed(tmp_path / "there", wheel, bundle, install="venv", wheels=wheel.parent)
    assert releases(tmp_path / "there") != set()  # the files stay for the next attempt
    assert current(tmp_path / "there") is None


def test_too_little_room_is_one_line() -> None:
    allowed = (
        r"device 'board': 100 MB are free in '/srv/m'; allowed: 270 MB or more; make room, or deploy\.folder=ANOTHER"
    )
    with pytest.raises(UserError, match=allowed):
        _refuse_without_room("board", "/srv/m", 270_000_000, 100_000_000)
    full = OSError(errno.ENOSPC, "No space left on device", "/srv/m/a.partial")
    assert line_of(full) == "no room is left there (/srv/m/a.partial); make some, or deploy.folder=ANOTHER"


def test_the_half_on_the_device_needs_the_standard_library_alone() -> None:
    ast.parse(BOOTSTRAP, feature_version=(3, 4))
    names = {module.__name__ for module in SENT}
    for position, module in enumerate(SENT):
        for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
            found = [node.module] if isinstance(node, ast.ImportFrom) else []
            found += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in map(str, found):
                earlier = {each.__name__ for each in SENT[:position]}
                assert name in earlier or name.split(".")[0] in sys.stdlib_module_names, (module.__name__, name)
    folder = Path(str(SENT[0].__file__)).parent
    assert names == {f"tasks.deploy.device_side.{file.stem}" for file in folder.glob("*.py") if file.stem != "__init__"}


def test_an_old_python_is_refused_in_one_line(tmp_path: Path, wheel: Path, bundle: Path) -> None:
    """An interpreter that says that it is old: the text is what a device gets."""
    old = tmp_path / "python3"
    text = BOOTSTRAP.replace("sys.version_info", "(3, 9)")
    old.write_text(f"#!{sys.executable}\n{text}")
    old.chmod(0o755)
    with pytest.raises(
        UserError, match=r"^device 'board': Python 3\.9 is too old; install Python 3\.11 or newer there$"
    ):
        deployed(tmp_path / "there", wheel, bundle, python=str(old))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_the_unit_is_one_that_systemd_reads(tmp_path: Path) -> None:
    from tasks.deploy.device_side.service import UNIT

    unit = tmp_path / "autotailor-there.service"
    unit.write_text(UNIT.format(root=tmp_path))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "autotailor-there.service" not in done.stderr
