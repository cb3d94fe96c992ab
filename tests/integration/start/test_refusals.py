"""Commands that cannot be are one line: without torch, Prefect and MLflow, without a server, and nothing is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs.documents import ROOT

HEAVY = (
    "torch",
    "prefect",
    "mlflow",
    "onnx",
    "onnxruntime",
    "timm",
    "sklearn",
    "scipy",
    "pandas",
    "pyarrow",
    "plotly",
    "ncnn",
)
SCRIPT = """
import sys
from flows.cli import main
code = main(sys.argv[1:])
print(code, *(name for name in {heavy!r} if name in sys.modules))
"""
PATHS = (
    ("run", "model.name=resnet1"),
    ("run", "model=onnx", "model.path=no.onnx"),
    ("run", "model=callable", "model.name=no.py:make"),
    ("run", "model.checkpoint=no.safetensors"),
    ("compile", "data.kind=imagefolder", "data.path=nowhere"),
    ("retarget", "supernet=nowhere"),
    ("run", "search.budgets_ms=[0]"),
    ("run", "search.budgets_ms=[2,1]"),
)
PLACES = (
    ("run", "output_dir=file/out"),
    ("run", "tracking.uri=http://127.0.0.1:9"),
    ("run", "tracking.uri=sqlite:///no/m.db"),
)


def told(folder: Path, words: tuple[str, ...]) -> tuple[str, str]:
    """The lines on stderr, and the exit code with the heavy libraries that were imported. The folder is as before."""
    work = folder / "work"
    work.mkdir(exist_ok=True)
    (work / "file").write_text("")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    environment = {
        name: value for name, value in environment.items() if name not in ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")
    }
    command = [sys.executable, "-c", SCRIPT.format(heavy=HEAVY), *words]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=True)
    assert os.listdir(work) == ["file"]
    assert not (folder / "cache" / "autotailor" / "prefect").exists()
    return done.stderr, done.stdout.strip()


@pytest.mark.parametrize("words", [*PATHS, *PLACES, *((*words, "--dry-run") for words in PATHS[:1])], ids=" ".join)
def test_what_cannot_be_is_refused_before_anything_is_loaded(words: tuple[str, ...], tmp_path: Path) -> None:
    line, found = told(tmp_path, words)
    assert line.startswith("autotailor: ")
    assert line.count("\n") == 1
    assert found == "2"
