"""`autotailor-runtime`: commands on the device."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tailor_ir
from adaptive_runtime.bundle.bundles import BundleManifest
from adaptive_runtime.cli import main
from tests.support.ir.networks import small_net
from tests.support.runtime.bundled import write_plain_bundle

SPACE: dict[str, Any] = {"*.width_mult": [0.5, 1], "exits": ["stage.1.block.*"]}


def written(folder: Path, samples: int) -> BundleManifest:
    net = tailor_ir.compile(small_net(), torch.randn(1, 3, 16, 16), SPACE)
    return write_plain_bundle(net, [net.max_config, net.min_config], folder, samples=samples)


def test_answers_of_every_subnet_and_exit_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = written(tmp_path / "bundle", samples=3)
    assert main(["check", str(tmp_path / "bundle"), "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    places = {(row["subnet"], row["exit"]) for row in found["differences"]}
    assert places == {(one.digest, exit) for one in manifest.subnets for exit in (None, *(e.exit for e in one.exits))}
    assert all(0 <= row["difference"] <= row["allowed"] for row in found["differences"])
    assert len(capsys.readouterr().out.splitlines()) == len(places)


@pytest.mark.parametrize(
    ("words", "line"),
    {
        "no command": ([], "required: COMMAND"),
        "another command": (["chekc"], "invalid choice: 'chekc'"),
        "another format": (["check", "{bundle}", "--format", "onxx"], "invalid choice: 'onxx'"),
        "no bundle": (["check", "{bundle}-other"], "bundle-other"),
        "no sample": (["check", "{bundle}"], "has no calibration sample; export the bundle again"),
        "not in this format": (["check", "{bundle}", "--format", "ncnn"], "has no SubNets in ncnn; allowed: onnx"),
    }.values(),
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    written(tmp_path / "bundle", samples=0)
    capsys.readouterr()
    assert main([word.format(bundle=tmp_path / "bundle") for word in words]) == 2
    told = capsys.readouterr().err
    assert line in told
    assert told.startswith("autotailor-runtime")
    assert told.count("\n") == 1
