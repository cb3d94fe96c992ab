"""`--cfg job`: the config that a command would use, and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.cli import main
from flows.cli.arguments import parse
from flows.cli.composed import shown
from flows.config import RunConfig
from flows.config.compose import compose_config
from flows.config.validate import validate
from tasks.base.errors import UserError
from tasks.base.schemas.placed import ChosenSubNet
from tasks.base.schemas.winners import Winner

WORDS = ["space.resolution=[24,32]", "finetune.epochs=3", "device=[ncnn]"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be asked of a server, or be written here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")


def test_the_config_is_shown_whole_and_nothing_is_worked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run", *WORDS, "--cfg", "job", "--json", "result.json"]) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert validate(RunConfig, found) == validate(RunConfig, compose_config("config", WORDS))
    assert found["space"] == {"resolution": [24, 32]}
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_the_config_is_shown_as_hydra_does_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["finetune", *WORDS, "-c", "job", "-p", "device.ncnn"]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert first == "# @package device.ncnn"
    assert yaml.safe_load(rest)["backend"] == "ncnn"
    assert main(["finetune", *WORDS, "--cfg", "job", "--package", "finetune.epochs"]) == 0
    assert capsys.readouterr().out == "# @package finetune.epochs\n3\n"


@pytest.mark.long
def test_the_shown_config_is_that_of_the_questions_search_and_of_each_run_of_a_sweep() -> None:
    asked = yaml.safe_load(shown(parse(["search", "--budget-ms", "2", "--device", "ncnn", "--cfg", "job"])))
    assert asked["search"]["budgets_ms"] == [2]
    assert list(asked["device"]) == ["ncnn"]
    sweep = yaml.safe_load_all(shown(parse(["run", "-m", "finetune.epochs=1,2", "-c", "job"])))
    assert [one["finetune"]["epochs"] for one in sweep] == [1, 2]


@pytest.mark.long
def test_files_of_chosen_subnets_name_the_devices(tmp_path: Path) -> None:
    def config(device: str) -> Any:
        subnet = Winner(
            digest="0" * 16, config={}, predicted_ms=1, predicted_accuracy=1, predicted_score=1, macs=1, parameters=1,
            budget_ms=1,
        )  # fmt: skip
        ChosenSubNet(device=device, rule="by hand", subnet=subnet).write(tmp_path / "fast.json")
        return yaml.safe_load(shown(parse(["export", "fast.json", "--cfg", "job"])))

    assert list(config("ncnn")["device"]) == ["ncnn"]
    assert list(config("torch")["device"]) == ["torch"], "an option of the group"
    with pytest.raises(
        UserError, match=r"chosen SubNet 'fast.json': 'moon' is no device; allowed: ncnn, onnxruntime, "
    ):
        config("moon")


def test_tables_have_a_config_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lut", "show", "output_dir=here", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["store"] == "here/luts"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--cfg", "all"], r"--cfg: got 'all'; allowed: job; Hydra's own settings are not options here"),
        (["--cfg", "hydra"], r"--cfg: got 'hydra'"),
        (["--cfg"], r"command line: argument --cfg/-c: expected one argument"),
        (["--package", "finetune"], r"--package: shows a part of the config; write --cfg job before it"),
        (["-c", "job", "-p", "finetun"], r"--package 'finetun': there is no 'finetun'; .*did you mean 'finetune'\?"),
        (["-c", "job", "-p", "output_dir.x"], r"there is no 'x'; allowed: nothing below a value"),
        (["-c", "job", "finetune.epochs=0"], r"finetune.epochs: got 0; allowed: 1 or more"),
        (["-c", "job", "finetune.epoch=1"], r"did you mean 'finetune.epochs'\?"),
    ],
)
def test_what_cannot_be_shown_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert main(["run", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (printed,) = captured.err.splitlines()
    assert re.search(line, printed)
