"""Reports to makers of libraries are off in one place, which every room imports before anything else."""

import ast
import json
import os
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import importing
from importing import SETTINGS, keep_quiet
from tests.support.docs.documents import DOCUMENTS, ROOT, blocks

ROOMS = ("adaptive_runtime", "autotailor", "benchmarks", "flows", "profiling_agents", "tailor_ir", "tasks", "tests")
REPORTING = re.compile(r"\s*(?:import|from) (?:onnxruntime|openvino|nncf|prefect|mlflow)\b")
OWN = re.compile(rf"\s*(?:import|from) (?:importing|{'|'.join(ROOMS)})\b")
FOREIGN_COMMAND = re.compile(r"^(?:prefect (?:server|worker)|mlflow (?:ui|server))\b", re.MULTILINE)
FOR_SHELLS = 'eval "$(python -m importing)"'


def test_settings_are_made_and_those_of_a_user_stay() -> None:
    environment = {"MLFLOW_DISABLE_TELEMETRY": "false", "ORT_DISABLE_TELEMETRY": ""}
    keep_quiet(environment)
    assert environment == {**SETTINGS, "MLFLOW_DISABLE_TELEMETRY": "false"}


def test_this_process_has_them_and_modules_that_report_cannot_be_imported() -> None:
    assert all(os.environ.get(name) for name in SETTINGS)
    with pytest.raises(ImportError):
        __import__("openvino_telemetry")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_it_before_any_library(room: str) -> None:
    tree = ast.parse((ROOT / room / "__init__.py").read_text(encoding="utf-8"))
    lines = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in lines]
    first = next(name for name in names if name.partition(".")[0] not in sys.stdlib_module_names)
    assert first == "importing"


def test_all_rooms_of_the_wheel_do_so_or_need_no_library_that_reports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) - set(ROOMS) == {"conf", "importing", "solvers"}
    assert project["tool"]["importlinter"]["root_packages"][-1] == "importing"


def test_onnxruntime_that_was_imported_before_writes_no_more_events(monkeypatch: pytest.MonkeyPatch) -> None:
    class Imported:
        calls = 0

        def disable_telemetry_events(self) -> None:
            self.calls += 1

    imported = Imported()
    monkeypatch.setitem(sys.modules, "onnxruntime", imported)
    runpy.run_path(str(importing.__file__))
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    runpy.run_path(str(importing.__file__))
    assert imported.calls == 1


def test_shells_get_the_same_settings(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_module("importing", run_name="__main__")
    words = capsys.readouterr().out.split()
    assert words[0] == "export"
    assert dict(word.split("=") for word in words[1:]) == SETTINGS


def test_the_image_has_the_same_settings() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^ENV (DO_NOT_TRACK=.*)$", text, re.MULTILINE)
    assert dict(word.split("=") for word in line.split()) == SETTINGS


def test_flow_runs_of_deployments_keep_prefect_quiet() -> None:
    for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]:
        environment = deployment["work_pool"]["job_variables"]["env"]
        assert environment["DO_NOT_TRACK"] == SETTINGS["DO_NOT_TRACK"], deployment["name"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.name))
def test_documents_keep_commands_of_others_quiet(document: Path) -> None:
    for block in blocks(document):
        if block.language == "bash" and (found := FOREIGN_COMMAND.search(block.text)):
            assert FOR_SHELLS in block.text[: found.start()], f"{block.where}: {found[0]}"


def first_imports(lines: list[str]) -> str:
    """The first import of ours, or of what reports, whichever comes first."""
    return next((line for line in lines if OWN.match(line) or REPORTING.match(line)), "import importing")


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: str(path.name))
def test_notebooks_import_ours_first(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    lines = [line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).splitlines()]
    assert OWN.match(first_imports(lines))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.name))
def test_programs_in_documents_are_quiet(document: Path) -> None:
    python = [block for block in blocks(document) if block.language == "python"]
    of_page = [line for block in python if block.file_name is None for line in block.text.splitlines()]
    assert OWN.match(first_imports(of_page)), "what stands outside of files is run as one program"
    for block in python:
        if block.file_name is not None and REPORTING.match(first := first_imports(block.text.splitlines())):
            assert "onnxruntime" in first
            assert 'os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")' in block.text.partition(first)[0]


@pytest.mark.parametrize(
    ("template", "quiet", "library"),
    [
        ("onnxruntime.py.jinja", 'os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")', "import onnxruntime"),
        ("onnxruntime.cpp.jinja", 'setenv("ORT_DISABLE_TELEMETRY", "1", 0);', "Ort::Env"),
        ("openvino.py.jinja", 'sys.modules.setdefault("openvino_telemetry", None)', "import openvino"),
    ],
)
def test_exported_examples_are_quiet_before_they_import_a_runtime(template: str, quiet: str, library: str) -> None:
    text = (ROOT / "tasks" / "export" / "examples" / template).read_text(encoding="utf-8")
    assert 0 < text.index(quiet) < text.index(library)
