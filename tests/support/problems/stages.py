"""A small network that learns here, and the stages from its SuperNet to exported winners and the report."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import save_file, save_model
from torch import nn

import tailor_ir
from profiling_agents.client import AgentClient, local_agent
from profiling_agents.messages import MeasureSettings
from tasks import export, report, search
from tasks.base.artifacts import Store, Workspace
from tasks.base.progress import Silent
from tasks.base.schemas.predictions import SENSITIVITIES_FILE
from tasks.base.schemas.stored import StageResult
from tasks.data import DataSettings, load_splits
from tasks.evaluation.models import ModelSettings, create
from tasks.evaluation.subnets import EvaluationData
from tasks.measuring import operators as enumerating
from tasks.measuring import profile
from tasks.prediction import latency as latency_stage
from tasks.prediction import sensitivity
from tasks.prediction.accuracy import AccuracyPredictor
from tasks.prediction.latency import LatencyPredictor
from tasks.prediction.settings import Settings as PredictSettings
from tasks.search.refine import stage as refine
from tasks.training import compile as compile_stage
from tasks.training.evaluate_given import evaluate_supernet
from tasks.training.finetune import checkpoint
from tasks.training.finetune.job import Job
from tasks.training.finetune.settings import Settings as FinetuneSettings
from tasks.training.finetune.settings import TrainSettings
from tests.support.finetune.one_rank import train_here

QUICK = MeasureSettings(warmup_ms=1.0, min_blocks=2, time_cap_ms=5.0, patience=0.0)
PREDICT = PredictSettings(
    validation_images=64, recalibration_images=64, random_subnets=4, fit_subnets=1, rounds=1, measure=QUICK
)
SILENT = Silent()
COMMON = {"batch_size": 16, "micro_batch": 16, "processes": 1, "device": "cpu", "recalibration_images": 64}
ONE_WINNER = search.Settings(method="exact", budgets_ms=(1000.0,))
"""The best SubNet: all of them are faster."""
IN_A_BUNDLE = export.Settings(measure=QUICK, formats=("onnx", "ncnn"), bundle=True)
Body = Callable[[Path], StageResult]


class Trained(NamedTuple):
    """A network, and its loss at each step."""

    module: nn.Module
    losses: list[float]


def trained(folder: Path, data: DataSettings, model: ModelSettings, *, steps: int, epochs: int) -> Trained:
    """A network of one process after some epochs of so many steps, with the job's checkpoint read."""
    train = load_splits(data)["train"]
    module = create(model, train.classes, train.form, problem=train.problem)
    assert isinstance(module, nn.Module)
    folder.mkdir()
    save_model(module, str(folder / "initial.safetensors"))
    job = Job(
        folder=folder,
        data=data,
        model=model,
        initial=folder / "initial.safetensors",
        steps_per_epoch=steps,
        total_steps=steps * epochs,
        train=TrainSettings.model_validate({**COMMON, "epochs": epochs, "learning_rate": 5e-3}),
    )
    history = train_here(job)
    checkpoint.load_model(job.checkpoint, module)
    return Trained(module, [step["loss"] for step in history])


def finetuned(
    folder: Path, data: DataSettings, model: ModelSettings, space: Mapping[str, Any], *, steps: int, epochs: int
) -> Path:
    """The SuperNet of a network that was trained here, fine-tuned with its largest SubNet as the teacher of the others."""
    module, losses = trained(folder / "base", data, model, steps=steps, epochs=epochs)
    assert losses[-1] < losses[0]
    weights = folder / "weights.safetensors"
    save_file({name: value.contiguous() for name, value in module.state_dict().items()}, str(weights))
    compile_stage.run(compile_stage.Settings(), model, data, weights, space, folder, Silent())
    settings = FinetuneSettings.model_validate({**COMMON, "epochs": 1, "strategy": "sandwich", "learning_rate": 1e-3})
    job = Job(
        folder=folder / "tuned",
        data=data,
        finetune=settings,
        supernet=folder / "supernet",
        steps_per_epoch=steps,
        total_steps=steps,
    )
    assert len(train_here(job)) == steps
    net = tailor_ir.load(folder / "supernet")
    checkpoint.load_model(job.checkpoint, net.elastic)
    net.save(folder / "finetuned")
    (folder / "finetuned" / "data.json").write_bytes((folder / "supernet" / "data.json").read_bytes())
    return folder / "finetuned"


def _of_device(stage: Callable[[str, Body], Path], device: str, name: str, body: Body) -> Path:
    return stage(f"{name}/{device}", body)


@dataclass(frozen=True, slots=True)
class SmallRun:
    """model: its name in the report. refined: winners are refined before they are exported. backends: the devices, here."""

    model: str
    data: DataSettings
    wish: search.Settings = ONE_WINNER
    files: export.Settings = IN_A_BUNDLE
    refined: bool = False
    backends: tuple[str, ...] = ("onnxruntime",)

    def from_network(
        self, folder: Path, network: ModelSettings, space: Mapping[str, Any], *, steps: int, epochs: int
    ) -> report.Sources:
        """The report's, of a network that is trained and made a SuperNet first (`finetuned`), in an empty folder."""
        (folder / "network").mkdir()
        supernet = finetuned(folder / "network", self.data, network, space, steps=steps, epochs=epochs)
        return self.sources(supernet, folder / "stages")

    def sources(self, supernet: Path, folder: Path) -> report.Sources:
        """The report's, of stages that run in a folder."""
        store, splits = Store(folder), load_splits(self.data)

        def stage(name: str, body: Body) -> Path:
            opened = store.open_stage(name, "key")
            return opened.publish(dict(body(opened.path)))

        given = stage("given", lambda out: evaluate_supernet(supernet, self.data, 64))
        enumerated = stage("enumerate", lambda out: enumerating.run(supernet, out, SILENT))
        predicted = stage(
            "sensitivities",
            lambda out: sensitivity.run(PREDICT, self.data, supernet, Workspace(out=out, progress=SILENT)),
        )
        validation = EvaluationData(splits["validation"], splits["train"], recalibration_images=64)
        devices = []
        for backend in self.backends:
            with local_agent(backend=backend) as client, client.lease():
                own = partial(_of_device, stage, backend)
                devices.append(self._device(backend, supernet, enumerated, predicted, validation, client, own))
        return report.Sources(
            model=self.model,
            data=self.data.kind,
            problem=self.data.problem,
            supernet=supernet,
            base=None,
            finetune=None,
            given=given,
            enumerate=enumerated,
            sensitivities=predicted,
            devices=devices,
        )

    def _device(
        self,
        name: str,
        supernet: Path,
        enumerated: Path,
        predicted: Path,
        validation: EvaluationData,
        client: AgentClient,
        stage: Callable[[str, Body], Path],
    ) -> report.DeviceSources:
        """Of the device: what was measured, searched and exported there."""
        times = profile.Settings(measure=QUICK, subnet=QUICK.model_copy(update={"layers_ms": 5.0}))
        profiled = stage("profile", lambda out: profile.run(times, enumerated, client, out, SILENT, supernet))
        latency = stage("latency", lambda out: latency_stage.run(PREDICT, supernet, profiled, client, out, SILENT))
        target = search.Target(name=name, latency=LatencyPredictor.load(latency / latency_stage.LATENCY_FILE))
        accuracies = AccuracyPredictor.load(predicted / SENSITIVITIES_FILE)
        asked = search.SearchRequest(supernet=supernet, targets=[target], accuracy=accuracies, settings=self.wish)
        found = stage("search", lambda out: search.run(asked, out, SILENT)[name])

        def refined(out: Path) -> StageResult:
            device = refine.SearchedDevice(target, found, lambda: nullcontext(client))
            wanted = refine.RefineSettings(candidates=2, rounds=1)
            searched = search.SearchedSuperNet(supernet=supernet, accuracy=accuracies, images=validation)
            refine.measure(wanted, PREDICT, searched, [device], out, SILENT)
            return refine.choose(wanted, searched, {name: found}, out, SILENT)[name]

        chosen = stage("refine", refined) if self.refined else found
        samples = {"validation": validation, "test": validation.of(load_splits(self.data)["test"])}
        exported = stage(
            "export",
            lambda out: export.run(
                export.ExportRequest(settings=self.files, supernet=supernet, search=chosen, data=samples),
                client,
                Workspace(out=out, progress=SILENT),
            ),
        )
        return report.DeviceSources(
            name=name, profile=profiled, latency=latency, search=chosen, export=exported, sensitivities=predicted
        )
