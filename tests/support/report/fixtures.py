"""A small run through the real stages: one device, a small untrained network, few choices."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch

import tailor_ir
from profiling_agents.client import local_agent
from profiling_agents.messages import MeasureSettings
from tailor_ir.spaces.selectors import SpaceSpec
from tasks import export, report, search
from tasks.base.artifacts import Store, Workspace, append_line
from tasks.base.progress import Silent
from tasks.base.schemas.results import BaseResult
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.evaluation.subnets import EvaluationData
from tasks.evaluation.subnets.record import BASE, CONFUSIONS_FILE, append_confusions
from tasks.measuring import operators as enumerating
from tasks.measuring import profile
from tasks.prediction import latency as latency_stage
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.settings import Settings as PredictSettings

SPACE: SpaceSpec = {"resolution": [24, 32], "stage.3.width_mult": [0.5, 1.0], "stage.4.width_mult": [0.5, 1.0],
                    "stage.*.block.*.expand_ratio": "auto"}  # fmt: skip
QUICK = MeasureSettings(warmup_ms=1.0, min_blocks=2, time_cap_ms=20.0, patience=0.0)
SUBNET = QUICK.model_copy(update={"layers_ms": 10.0})
CLASSES = tuple(f"<b>{digit}</b>" for digit in range(10))
PREDICT = PredictSettings(
    random_subnets=6,
    fit_subnets=2,
    rounds=1,
    validation_images=50,
    recalibration_images=64,
    interactions=3,
    measure=QUICK,
)


def _base(out: Path) -> dict[str, Any]:
    for step in range(1, 6):
        append_line(out / "history.jsonl", {"step": step, "epoch": 0, "loss": 2 / step})
    confusion_KK = np.eye(10, dtype=np.int64) + np.eye(10, k=1, dtype=np.int64)
    append_confusions(out / CONFUSIONS_FILE, BASE, CLASSES, confusion_KK.tolist())
    return BaseResult(trained=True, validation_accuracy=0.11, test_accuracy=0.12).to_json()


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> report.Sources:
    root = tmp_path_factory.mktemp("report")
    store, silent, data = Store(root), Silent(), DataSettings(kind="digits", workers=1)
    supernet = root / "supernet"

    def stage(name: str, body: Callable[[Path], StageResult]) -> Path:
        folder = store.open_stage(name, "key")
        return folder.publish(dict(body(folder.path)))

    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=10).eval()
    tailor_ir.compile(network, torch.zeros(1, 3, 32, 32), SPACE).save(supernet)
    enumerated = stage("enumerate", lambda out: enumerating.run(supernet, out, silent))
    accuracy = stage(
        "sensitivities", lambda out: sensitivity.run(PREDICT, data, supernet, Workspace(out=out, progress=silent))
    )
    splits = load_splits(data)
    images = {"test": EvaluationData(splits["test"], splits["train"], limit=50, recalibration_images=64)}
    with local_agent(backend="onnxruntime") as client, client.lease():
        settings = profile.Settings(measure=QUICK, subnet=SUBNET)
        profiled = stage("profile", lambda out: profile.run(settings, enumerated, client, out, silent, supernet))
        latency = stage("latency", lambda out: latency_stage.run(PREDICT, supernet, profiled, client, out, silent))
        here = search.Target(name="here", latency=LatencyPredictor.load(latency / latency_stage.LATENCY_FILE))
        predictor = AccuracyPredictor.load(accuracy / sensitivity.SENSITIVITIES_FILE)
        asked = search.SearchRequest(
            supernet=supernet, targets=[here], accuracy=predictor, settings=search.Settings(method="exact")
        )
        found = stage("search", lambda out: search.run(asked, out, silent)["here"])
        quick = export.Settings(measure=QUICK, keep_winners=True)
        wanted = export.ExportRequest(settings=quick, supernet=supernet, search=found, data=images)
        exported = stage("export", lambda out: export.run(wanted, client, Workspace(out=out, progress=silent)))
    device = report.DeviceSources(
        name="here", profile=profiled, latency=latency, search=found, export=exported, sensitivities=accuracy
    )
    return report.Sources(
        model="test_resnet",
        data="digits",
        supernet=supernet,
        base=stage("base", _base),
        finetune=None,
        enumerate=enumerated,
        sensitivities=accuracy,
        devices=[device],
        stages=[
            {"stage": "base", "seconds": 3.25, "cached": False},
            {"stage": "enumerate", "seconds": 0.1, "cached": True},
        ],
        config={"model": {"name": "test_resnet"}},
        versions={"torch": torch.__version__},
    )


@pytest.fixture(scope="session")
def made(sources: report.Sources, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("page")
    return report.run(sources, report.Settings(), out), out
