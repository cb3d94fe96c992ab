"""A run in which all is complete is found again: without servers and libraries that work, as long as nothing has changed."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli.arguments import parse
from flows.cli.composed import composed, validated
from flows.config import FlowConfig
from flows.pipeline.complete import COMPLETE_FILE, SERVER, found_again, is_remembered
from flows.pipeline.stages import PIPELINE
from tasks.base.artifacts import read_json
from tasks.report import DATA_FILE, PAGE_FILE
from tests.support.docs.documents import ROOT
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command

HEAVY = ("torch", "timm", "onnx", "onnxruntime", "plotly", "matplotlib", "sklearn", "pymoo", "prefect", "mlflow")
SCRIPT = """
import sys
from flows.cli import main
assert main(sys.argv[1:]) == 0
print("imported:", *(name for name in {heavy!r} if name in sys.modules))
"""


@pytest.fixture
def words(command: Command) -> list[str]:
    places = (f"output_dir={command.output}", f"tracking.uri={database_in(command.output.parent)}")
    return ["run", *command.words, *places]


@pytest.fixture
def config(finished: dict[str, Any], words: list[str]) -> FlowConfig:
    arguments = parse(words)
    return validated(composed(arguments.overrides, arguments), arguments)


def test_it_puts_its_report_back_and_imports_neither_servers_nor_what_trains_or_draws(
    finished: dict[str, Any], words: list[str], config: FlowConfig, tmp_path: Path
) -> None:
    (config.folder / PAGE_FILE).write_text("of another run")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(heavy=HEAVY), *words, "--json", str(tmp_path / "result.json")],
        env={name: value for name, value in os.environ.items() if name != SERVER} | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"
    assert done.stderr.count(": found complete") == len(finished["stages"])
    assert read_json(tmp_path / "result.json") == {
        **finished,
        "stages": [{**row, "cached": True} for row in finished["stages"]],
    }
    for name in (PAGE_FILE, DATA_FILE):
        assert (config.folder / name).read_bytes() == (config.run_folder("report") / name).read_bytes()


def test_whoever_has_a_server_is_told_of_each_run(config: FlowConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVER, raising=False)  # commands in this process have left theirs
    assert is_remembered(config)
    monkeypatch.setenv(SERVER, "http://127.0.0.1:4200/api")
    assert not is_remembered(config)


@pytest.mark.parametrize("name", [COMPLETE_FILE, PAGE_FILE, DATA_FILE])
def test_a_file_of_the_run_that_has_changed_is_made_anew(config: FlowConfig, name: str) -> None:
    file = config.run_folder("report") / name
    before = file.read_bytes()
    file.write_bytes(before[:-2])
    try:
        assert found_again(PIPELINE, config) is None
    finally:
        file.write_bytes(before)


def test_a_damaged_stage_and_a_missing_database_are_the_runs_work(finished: dict[str, Any], config: FlowConfig) -> None:
    operators = next((config.folder / "stages" / "enumerate").rglob("operators.json"))
    database = config.folder.parent / "mlflow.db"
    assert database.is_file()
    for file in (operators, database):
        aside = file.rename(file.with_name("aside"))
        try:
            assert found_again(PIPELINE, config) is None
        finally:
            aside.rename(file)
    assert found_again(PIPELINE, config) is not None
