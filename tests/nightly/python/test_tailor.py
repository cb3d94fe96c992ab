"""`autotailor.tailor` from a script: a whole run on live objects, which a killed process goes on with, and its results."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.support.docs.documents import ROOT

SCRIPT = """
import json, sys
import torch
from torch import nn
import autotailor

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = []
        for before, after in ((1, 16), (16, 32)):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.mean, self.peak = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, x):
        features = self.features(x)
        return {"peak": self.peak(features), "mean": self.mean(features)}

torch.manual_seed(0)
x = torch.rand(300, 1, 12, 20)
targets = {"mean": x.mean((1, 2, 3))[:, None], "peak": x.amax((1, 2, 3))[:, None]}

def loss(outputs, targets):
    return sum(nn.functional.mse_loss(outputs[name], targets[name]) for name in targets)

def score(outputs, targets):
    return ((outputs["mean"] - targets["mean"]).abs() < 0.1).float().flatten()

with_labels = sys.argv[1] == "labels"
data = autotailor.Data({"x": x, **targets}, inputs=["x"], preparation="as they come")
asked = {"loss": loss, "score": score} if with_labels else {}
options = ["finetune.epochs=4"]
net = Net().eval()
job = autotailor.Job(model=net, data=data, output_dir=sys.argv[1], options=options, **asked)
stages = [autotailor.compile(job), autotailor.finetune(job)]
stages += [stage for per_device in (autotailor.profile_operators, autotailor.search) for stage in per_device(job).values()]
exported = autotailor.export(job)
found = autotailor.tailor(net, data, devices=["onnxruntime"], output_dir=sys.argv[1], options=options, **asked)
best = found.best("onnxruntime", 1000)
print(json.dumps({"rows": found.rows("onnxruntime"), "score": found.score, "path": str(best.path),
                  "shape": best.card.preparation.shape,
                  "stages": [[one.name, one.device, str(one.folder)] for one in stages],
                  "macs": [one.supernet.macs(one.supernet.max_config) for one in stages[:2]],
                  "operators": stages[2].table.p50_ms.notna().sum().item(), "front": stages[3].table.to_dict("list"),
                  "exported": exported.rows("onnxruntime"), "no_report": [exported.report, exported.headline],
                  "headline": found.headline, "table": found._repr_html_()}))
found.plot().savefig("front.png")
try:
    found.best("onnxruntime", 1e-9)
except autotailor.UserError as error:
    print(error)
"""


def started(folder: Path, case: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, "script.py", case],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str, str]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-3000:]
    first, line = out.splitlines()[-2:]
    return json.loads(first), line, err


@pytest.mark.parametrize("case", ["labels", "fidelity"])
def test_a_killed_call_goes_on_and_gives_files_that_answer(case: str, tmp_path: Path) -> None:
    process = started(tmp_path, case)
    compiled = tmp_path / case / "stages" / "compile"
    while process.poll() is None and not any(compiled.glob("*/result.json")):
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    found, line, err = ended(started(tmp_path, case))
    assert "compile: found complete" in err
    assert [(name, device) for name, device, _ in found["stages"]] == [
        ("compile", ""),
        ("finetune", ""),
        ("profile", "onnxruntime"),
        ("search", "onnxruntime"),
    ]
    assert all((tmp_path / folder / "result.json").is_file() for *_, folder in found["stages"])
    assert found["macs"][0] == found["macs"][1] > 0
    assert found["operators"] > 10
    front = found["front"]
    assert all(ms <= budget for ms, budget in zip(front["predicted_ms"], front["budget_ms"], strict=True))
    assert found["score"] in front
    assert found["exported"] == found["rows"]
    assert found["no_report"] == [None, []]
    assert found["score"] == ("score" if case == "labels" else "fidelity")
    assert all(row["measured_ms"] <= row["budget_ms"] for row in found["rows"])
    assert found["shape"] == [1, 12, 20]
    assert "<table>" in found["table"]
    assert (tmp_path / "front.png").stat().st_size > 1000
    assert "no SubNet of the front keeps it" in line
    session = onnxruntime.InferenceSession(tmp_path / found["path"])
    (given,) = session.get_inputs()
    outputs = session.run(None, {given.name: np.zeros([1, *given.shape[1:]], np.float32)})
    assert [one.shape for one in outputs] == [(1, 1), (1, 1)]
    again, _, err = ended(started(tmp_path, case))
    assert again["rows"] == found["rows"]
    assert "finetune: found complete" in err
