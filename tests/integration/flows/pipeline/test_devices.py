"""Device profiles against real agents: each is the device that its profile says, or refused in one line."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flows.cli import main
from flows.config import DeviceProfile, RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from flows.pipeline.devices import Devices, share_cores
from profiling_agents.client import local_agent
from tasks.base.errors import UserError
from tests.support.agents.cut_network import Flips, network
from tests.support.flows.tiny import TINY

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.long
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_two_profiles_of_one_machine_keep_to_the_cores_that_each_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where agents claim cores, apart from those of other tests
    profiles = {f"core{core}": DeviceProfile(backend="ncnn", cores=(core,)) for core in CORES[:2]}
    with Devices(profiles) as devices:
        found = [devices.capabilities(name) for name in profiles]
        assert [one.cores for one in found] == [(CORES[0],), (CORES[1],)]
        assert not any(one.cores_shared for one in found)


def test_an_agent_on_other_cores_than_its_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with local_agent("ncnn", cores=[CORES[-1]]) as client:
        monkeypatch.setenv("TOKEN", client._transport._http.headers["Authorization"].removeprefix("Bearer "))
        profile = DeviceProfile(backend="ncnn", cores=(CORES[-1] + 1,), agent=client.url, token_env="TOKEN")
        line = rf"^device\.board\.cores: profile says {CORES[-1] + 1}, agent has {CORES[-1]}"
        with Devices({"board": profile}) as devices, pytest.raises(UserError, match=line):
            devices.capabilities("board")


@pytest.mark.parametrize(
    ("profiles", "share"),
    [
        ([{"cores": (CORES[0],)}], False),
        ([{"cores": (CORES[0],)}, {"cores": (CORES[0],)}], True),
        ([{"cores": (CORES[0],)}, {}], True),
        ([{"threads": len(CORES)}], False),
        ([{"threads": len(CORES)}, {}], True),
    ],
)
def test_devices_take_turns_where_they_may_meet_on_a_core(profiles: list[dict[str, Any]], share: bool) -> None:
    assert share_cores([DeviceProfile(backend="ncnn", **options) for options in profiles]) is share


@pytest.mark.parametrize("cores", [(0, 1), (0, 0), (), (-1,)])
def test_a_profile_has_a_core_for_each_thread(cores: tuple[int, ...]) -> None:
    threads = max(len(cores) - 1, 1) if cores != (0, 0) else 2
    with pytest.raises(ValidationError, match=r"cores=.* with threads=\d; allowed: null, or \d different"):
        DeviceProfile(backend="ncnn", threads=threads, cores=cores)


def test_cores_can_be_given_on_the_command_line() -> None:
    config = validate(RunConfig, compose_config("config", ["device.ncnn.cores=[4,5]", "device.ncnn.threads=2"]))
    assert config.device["ncnn"].cores == (4, 5)


@pytest.mark.long
def test_a_batch_is_another_device_to_what_was_measured() -> None:
    profiles = {f"{batch}": DeviceProfile(backend="onnxruntime", batch=batch) for batch in (1, 4)}
    with Devices(profiles) as devices:
        assert devices.fingerprint("1") == devices.capabilities("1").fingerprint
        assert devices.fingerprint("4") != devices.fingerprint("1")


@pytest.mark.parametrize("backend", ["ncnn", "ncnn-adb"])
def test_ncnn_takes_no_batch(backend: str) -> None:
    with pytest.raises(ValidationError, match=rf"batch=4 with backend={backend}, which has no batch axis; allowed: 1"):
        DeviceProfile.model_validate({"backend": backend, "batch": 4})


@pytest.mark.long
def test_a_device_whose_answers_are_garbled_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with local_agent("ncnn") as client, network(client.url) as wire:
        wire.garble = Flips(1.0)
        monkeypatch.setenv("TOKEN", client._transport._http.headers["Authorization"].removeprefix("Bearer "))
        remote = ("device=[remote]", f"device.remote.agent={wire.url}", "device.remote.token_env=TOKEN")
        assert main(["profile", *TINY, f"output_dir={tmp_path}", *remote, "--dry-run"]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("autotailor: ")]
    assert len(error) == 1
    assert "which cannot be read; is it an AutoTailor agent?; asked 4 times" in error[0]
