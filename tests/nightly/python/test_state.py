"""A file with state and samples without labels, by the command line: to a measured front, and files that keep the state."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

from tasks.base.schemas.exports import ExportIndex
from tests.support.docs.documents import ROOT
from tests.unit.data.test_files_with_state import CELL, SHAPES, F, S, written

QUICK = (
    "+preset=quick",
    "finetune.epochs=2",
    "predict.random_subnets=4",
    "search.budget_count=3",
    "export.formats=[onnx]",
)
COUNT = 120


def test_a_network_with_state_runs_from_its_file_to_files_with_state(tmp_path: Path) -> None:
    cell = written(tmp_path / "cell.onnx", CELL, SHAPES, zero=np.zeros(1, np.int64))
    x_NF = np.random.default_rng(1).normal(size=(COUNT, F)).astype(np.float32)
    np.savez(tmp_path / "inputs.npz", x=x_NF)
    given = ["model=onnx", "model.path=cell.onnx", "model.constants={sr:2}", "data=unlabelled", "data.path=inputs.npz"]
    command = [sys.executable, "-m", "flows.cli", "run", *QUICK, *given, "data.window=20", "output_dir=out"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    index = next(iter((tmp_path / "out").rglob("index.json")))
    winners = ExportIndex.read(index).winners
    assert any(one.measured_ms is not None and one.measured_ms <= one.budget_ms for one in winners)
    largest = max(winners, key=lambda one: one.accuracy["test"])
    file = next(index.parent / name for name in largest.files if name.endswith(".onnx"))
    session, original = onnxruntime.InferenceSession(file), onnxruntime.InferenceSession(cell)
    assert [one.name for one in session.get_inputs()] == ["x", "h"]
    h, own = np.zeros((1, 1, S), np.float32), np.zeros((1, 1, S), np.float32)
    errors, values = [], []
    for x_F in x_NF[:20]:
        y, h = session.run(None, {"x": x_F[None], "h": h})
        wanted, own = original.run(None, {"x": x_F[None], "h": own, "sr": np.array(2)})
        errors.append(y - wanted)
        values.append(wanted)
    assert np.square(errors).mean() < 0.5 * np.var(values)
