"""Winners as models of MLflow, and what the page of a run shows first."""

from pathlib import Path
from typing import Any

import mlflow.onnx
import mlflow.pyfunc
import numpy as np

from flows.config import RunConfig
from flows.pipeline.tracking import description, flatten, headline_lines, models_lines, parameters
from flows.pipeline.tracking.models import write_models
from tasks.base.artifacts import digest_of
from tests.support.flows.made_exports import made_exports


def test_a_winner_is_a_model_that_mlflow_loads_under_the_name_that_its_files_have(tmp_path: Path) -> None:
    exports = made_exports(tmp_path)
    assert write_models(exports, tmp_path, tmp_path / "models") == ["1ms-a-net-01234567"]
    model = tmp_path / "models" / "1ms-a-net-01234567"
    assert mlflow.onnx.load_model(str(model)).graph.name == "relu"
    loaded: Any = mlflow.pyfunc.load_model(str(model))
    (answer,) = loaded.predict({"image": np.array([[-1, 2, 3]], np.float32)}).values()
    assert answer.tolist() == [[0, 2, 3]]
    assert loaded.metadata.metadata["measured_ms"] == 0.9
    requirements = (model / "requirements.txt").read_text().splitlines()
    assert [line.partition("==")[0] for line in requirements] == ["mlflow", "numpy", "onnx", "onnxruntime"]


def test_models_of_the_same_files_are_equal_and_hold_no_copies(tmp_path: Path) -> None:
    exports = made_exports(tmp_path)
    for name in ("first", "second"):
        write_models(exports, tmp_path, tmp_path / name)
    assert digest_of(tmp_path / "first") == digest_of(tmp_path / "second")
    assert all(file.is_symlink() for file in (tmp_path / "first").glob("*/*.onnx"))


def test_parameters_are_those_that_differ_and_those_that_runs_are_compared_by() -> None:
    changes: dict[str, Any] = {"finetune": {"epochs": 3}, "profile": {"flush_s": 7}}
    plain, changed = (parameters(RunConfig.model_validate(given)) for given in ({}, changes))
    assert plain.keys() <= changed.keys()
    assert changed.keys() - plain.keys() == {"profile.flush_s"}
    assert (plain["device.ncnn.threads"], changed["finetune.epochs"]) == ("1", "3")
    assert len(plain) < 30 < len(dict(flatten(RunConfig().model_dump(mode="json"))))


def test_the_description_names_the_network_the_devices_and_their_budgets() -> None:
    ncnn = {"ncnn": {"backend": "ncnn"}}
    budgets = {"budgets_ms": [1, 2.5]}
    config = RunConfig.model_validate({"device": ncnn, "search": budgets, "output_dir": "runs/a"})
    lines = description(config, "report").splitlines()
    assert lines[0] == f"**{config.name}**, up to `report`, in `{Path('runs/a').resolve()}`"
    assert lines[2:] == ["- ncnn: ncnn on this machine, fp32, 1 thread, budgets 1, 2.5 ms"]
    assert description(RunConfig.model_validate({"device": ncnn}), "report").endswith(
        "12 budgets between its fastest SubNet and its best"
    )


def test_the_headline_of_a_description_is_short() -> None:
    def card(label: str, device: str = "") -> dict[str, str]:
        return {"label": label, "value": "1", "note": "n", "device": device}

    own = [card(f"ncnn: {name}", "ncnn") for name in ("speed-up", "latency predictor", "budgets kept")]
    report: dict[str, Any] = {"headline": [card("base model"), card("SubNets"), *own]}
    assert headline_lines(report) == ["- base model: 1 (n)", "- ncnn: speed-up: 1 (n)", "- ncnn: budgets kept: 1 (n)"]
    (line,) = models_lines({"ncnn": ["runs:/r/models/ncnn/a", "runs:/r/models/ncnn/b"]})
    assert line == '- ncnn: `mlflow.onnx.load_model("runs:/r/models/ncnn/a")`, one of 2 winners'
