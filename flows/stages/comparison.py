"""The baselines, and what the winners gain over them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tasks.base
import tasks.baselines
import tasks.predict.sensitivity
import tasks.search
from flows.config import CommonConfig, RunConfig
from flows.inputs import data_key, model_key
from flows.run import Output, Run, Stage
from flows.stages.common import OF_IMAGES, OF_TIMING, finish, stage_task
from flows.stages.supernets import NOT_IN_KEY
from tasks.models import ModelSettings
from tasks.predict.accuracy import AccuracyPredictor
from tasks.progress import Progress


@stage_task("sibling")
def sibling(run: Run, config: RunConfig, number: int) -> Output:
    """One of the smaller networks of the baselines, trained as long as base network and SuperNet together."""
    one = config.baselines.siblings[number]
    settings = config.base.model_copy(update={"epochs": config.base.epochs + config.finetune.epochs})
    stage = Stage(
        name=f"sibling/{one.name}",
        modules=("tasks.base", "tasks.finetune.worker"),
        settings=settings.model_dump(mode="json", exclude=NOT_IN_KEY),
        inputs=(model_key(one.model), data_key(config.data)),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        return tasks.base.run(settings, one.model, config.data, out, progress, f"training {one.name}")

    return finish(run.execute(stage, body))


@stage_task("baselines")
def baselines(
    run: Run,
    config: CommonConfig,
    supernet: Path,
    accuracy: Output,
    found: Mapping[str, Output],
    siblings: Sequence[Output],
) -> Output:
    """Which networks the winners of all devices are held against, and the accuracy of both."""
    accuracy_file = accuracy.folder / tasks.predict.sensitivity.SENSITIVITIES_FILE
    fronts = {name: one.folder / tasks.search.FRONT_FILE for name, one in found.items()}
    weights = [one.folder / tasks.base.WEIGHTS_FILE for one in siblings]
    networks = [
        tasks.baselines.Trained(baseline="siblings", name=one.title, model=one.model, weights=file)
        for one, file in zip(config.baselines.siblings, weights, strict=True)
    ]
    files = [(name, path) for name, paths in config.baselines.files.items() for path in paths]
    networks += [
        tasks.baselines.Trained(
            baseline=name, name=path.name, model=ModelSettings(kind="onnx", name=path.name, path=path)
        )
        for name, path in files
    ]
    stage = Stage(
        name="baselines",
        modules=("tasks.baselines",),
        settings={
            **config.baselines.model_dump(mode="json", exclude={"files"}),
            "files": [[name, path.name] for name, path in files],
            "search": config.search.model_dump(mode="json"),
            "predict": config.predict.model_dump(mode="json", include=OF_IMAGES),
        },
        inputs=(
            data_key(config.data),
            supernet,
            accuracy_file,
            list(fronts),
            *fronts.values(),
            *weights,
            *(path for _, path in files),
        ),
        artifacts=(tasks.baselines.BASELINES_FILE,),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        predictor = AccuracyPredictor.load(accuracy_file)
        return tasks.baselines.choose(
            config.baselines, config.search, config.predict, supernet, predictor, config.data, networks, fronts, out,
            progress,
        )  # fmt: skip

    return finish(run.execute(stage, body))


@stage_task("compared", agent=True)
def compared(run: Run, config: CommonConfig, device: str, supernet: Path, chosen: Output) -> Output:
    """The baselines and the winners of one device, timed there side by side, and what the winners gain."""
    batch = config.device[device].batch
    stage = Stage(
        name=f"compared/{device}",
        modules=("tasks.baselines",),
        settings=config.predict.model_dump(mode="json", include=OF_TIMING),
        inputs=(run.devices.fingerprint(device), device, supernet, chosen.folder / tasks.baselines.BASELINES_FILE),
        artifacts=(tasks.baselines.COMPARED_FILE,),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.exclusive(device) as client:
            return tasks.baselines.compare_on(
                device, config.predict, supernet, chosen.folder, client, out, progress, batch
            )

    return finish(run.execute(stage, body))
