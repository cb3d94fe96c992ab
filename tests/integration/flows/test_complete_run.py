"""A run in which all is complete: its report is there already, and nothing of what trains or measures is imported."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tasks.artifacts import read_json
from tasks.report import DATA_FILE, PAGE_FILE
from tests.support.docs.documents import ROOT
from tests.support.flows.databases import database_in
from tests.support.flows.fixtures import Command

HEAVY = ("torch", "torchvision", "timm", "onnx", "onnxruntime", "plotly", "matplotlib", "sklearn", "pymoo")
SCRIPT = """
import sys
from flows.cli import main
assert main(sys.argv[1:]) == 0
print("imported:", *(name for name in {heavy!r} if name in sys.modules))
"""


def test_a_run_in_which_all_is_complete_finds_its_report_and_imports_no_torch(
    finished: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    again = command("run")
    assert all(row["cached"] for row in again["stages"])
    differing = {name for name in finished if finished[name] != again[name]}
    assert differing <= {"stages"}, "the report is not made anew, but for the rows of stages"
    files = [Path(again["run"]) / name for name in (PAGE_FILE, DATA_FILE, "front-onnxruntime.png")]
    before = [file.stat().st_mtime_ns for file in files]
    places = (f"output_dir={command.output}", f"tracking.uri={database_in(command.output.parent)}")
    words = ["run", *command.words, *places, "--json", str(tmp_path / "result.json")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(heavy=HEAVY), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"
    assert read_json(tmp_path / "result.json") == again
    assert [file.stat().st_mtime_ns for file in files] == before, "all rows of stages are the same, too"
