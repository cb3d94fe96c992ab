"""`autotailor partition`: its tables, its files, and one line for bad input."""

import json
import shlex
from pathlib import Path

import pytest

import tailor_ir
from adaptive_runtime.bundle.chains import PARTS_FILE, PartsManifest
from flows.cli import main
from flows.cli.arguments import parse
from flows.cli.composed import config_of
from flows.cli.partition import PAGE_FILE
from flows.cli.words import COMMANDS
from tasks.placement.partition import PartitionAnswer

Run = tuple[Path, tailor_ir.SuperNet]


def test_the_command_shows_cuts_and_plans_and_writes_page_json_and_parts(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        f"output_dir={run[0]}",
        "partition.devices=[phone,server]",
        "partition.bandwidth_mbps=[1000,0.01]",
        "partition.private=2",
        "partition.latency_ms=0.01",
        f"partition.parts={tmp_path / 'parts'}",
        "--json",
        str(tmp_path / "plan.json"),
    ]
    assert main(["partition", *words]) == 0
    shown = capsys.readouterr().out
    answer = PartitionAnswer.of_json(json.loads((tmp_path / "plan.json").read_text()), "plan.json")
    assert [plan.bandwidth_mbps for plan in answer.plans] == [1000.0, 0.01]
    assert "the answer" in shown
    assert "phone 0–1, server 2–" in shown
    assert (run[0] / PAGE_FILE).read_text().startswith("<!DOCTYPE html>")
    manifest = PartsManifest.read(tmp_path / "parts" / PARTS_FILE)
    assert [part.device for part in manifest.parts] == [stay.device for stay in answer.plans[0].stays]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "partition.devices: got []; allowed: two to 6 different names, the coordinator first"),
        (
            ["partition.devices=[phone]"],
            "devices: got [phone]; allowed: two to 6 different names, the coordinator first",
        ),
        (["partition.devices=[phone,board]"], "device 'board': has no table in"),
        (["partition.devices=[phone,server]", "partition.latency_ms=-1"], "partition.latency_ms: got -1; allowed: "),
        (["partition.devices=[phone,server]", "subnet=middle"], "subnet: got 'middle'; allowed: largest, smallest"),
        (["partition.devices=[phone,server]", "partition.bandwith_mbps=[1]"], "did you mean"),
        (
            ["partition.devices=[phone,server]", "partition.links={phone-board:{bandwidth_mbps:1,latency_ms:1}}"],
            "joins no two",
        ),
    ],
)
def test_bad_options_are_one_line(words: list[str], line: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", f"output_dir={run[0]}", *words]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert line in lines[0]


def test_links_are_given_by_the_names_of_two_devices() -> None:
    words = ["partition", "partition.devices=[a,b-c]", "partition.links={a-b-c:{bandwidth_mbps:5,latency_ms:2}}"]
    settings = config_of(parse(words)).partition
    assert settings.link("b-c", "a", 1.0).bandwidth_mbps == 5.0


@pytest.mark.parametrize("example", COMMANDS["partition"].examples)
def test_the_examples_of_the_help_are_accepted(example: str) -> None:
    assert config_of(parse(shlex.split(example)[1:])).partition.devices
