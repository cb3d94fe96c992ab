"""`autotailor deploy`: the command line, and the flow."""

import re
from pathlib import Path

import pytest
import yaml

from flows.cli import main
from flows.config import DeployConfig
from flows.config.compose import compose_config
from flows.config.validate import validate


def test_the_defaults_in_conf_are_the_defaults_in_code() -> None:
    assert validate(DeployConfig, compose_config("deploy", [])) == DeployConfig(device={})


def test_the_config_is_that_of_the_named_device(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["deploy", "ssh", "device.ssh.ssh.host=user@board", "deploy.folder=/srv/model", "--cfg", "job"]
    assert main(words) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert list(shown["device"]) == ["ssh"]
    assert shown["device"]["ssh"]["ssh"]["host"] == "user@board"
    assert shown["deploy"]["folder"] == "/srv/model"


@pytest.mark.parametrize(
    ("words", "line"),
    {
        "no device": ([], "deploy: got 0 devices; allowed: one; write autotailor deploy DEVICE"),
        "two devices": (["ncnn", "onnxruntime"], "deploy: got 2 devices"),
        "no such device": (["onxruntime"], "deploy: 'onxruntime' is no device; allowed: android, .* did you mean"),
        "not among the chosen": (["ncnn", "device=[torch]"], "deploy: 'ncnn' is no device; allowed: torch"),
        "an agent": (
            ["remote", "device.remote.agent=http://board:8750", "device.remote.token_env=TOKEN"],
            "device.remote: nothing can be installed through an agent's address; allowed: a device with ssh",
        ),
        "a phone": (["android", "device.android.provider=SERIAL/big"], "nothing can be installed through adb"),
        "no bundle": (
            ["onnxruntime", "output_dir={folder}"],
            r"bundle '{folder}/exports/onnxruntime/bundle': is not there; the run writes it with export\.bundle=true",
        ),
        "a relative folder": (["ncnn", "deploy.folder=there"], "deploy.folder"),
        "a flag of others": (["ncnn", "--dry-run"], "--dry-run: is not a flag of 'deploy'"),
    }.values(),
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert main(["deploy", *(word.format(folder=tmp_path) for word in words)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert re.search(line.format(folder=tmp_path), lines[0]), lines
