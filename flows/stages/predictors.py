"""What is measured of a SuperNet and of devices, and the predictors made from it."""

from pathlib import Path
from typing import Any

import tasks.enumerate
import tasks.predict.resources
import tasks.predict.sensitivity
import tasks.predict.validate
import tasks.profile
from flows.config import CommonConfig
from flows.inputs import data_key
from flows.run import Output, Run, Stage
from flows.stages.common import finish, stage_task
from tasks.progress import Progress

SENSITIVITY_SETTINGS = {"random_subnets", "seed", "validation_images", "recalibration_images", "interactions"}
NOT_OF_LATENCY = {"validation_images", "recalibration_images", "interactions", "features_mib"}


@stage_task("profile", agent=True)
def profile(run: Run, config: CommonConfig, device: str, supernet: Path, enumerated: Output) -> Output:
    """The look-up table of one device."""
    settings = config.profile_of(device)
    stage = Stage(
        name=f"profile/{device}",
        modules=("tasks.profile",),
        settings=settings.model_dump(mode="json", include={"method", "measure", "subnet", "other_settings"}),
        inputs=(run.devices.fingerprint(device), supernet, enumerated.folder / tasks.enumerate.OPERATORS_FILE),
        artifacts=(tasks.profile.LUT_FOLDER,),
        anew=bool(settings.remeasure),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.meter(device) as meter:
            batch = config.device[device].batch
            return tasks.profile.run(settings, enumerated.folder, meter, out, progress, supernet, batch)

    return finish(run.execute(stage, body))


@stage_task("sensitivities")
def sensitivities(run: Run, config: CommonConfig, supernet: Path) -> Output:
    """The accuracy predictor and its error."""
    stage = Stage(
        name="sensitivities",
        modules=("tasks.predict.sensitivity",),
        settings=config.predict.model_dump(mode="json", include=SENSITIVITY_SETTINGS),
        inputs=(data_key(config.data), supernet),
        artifacts=(tasks.predict.sensitivity.SENSITIVITIES_FILE, tasks.predict.sensitivity.VALIDATION_FILE),
    )
    return finish(
        run.execute(
            stage,
            lambda out, progress: tasks.predict.sensitivity.run(config.predict, config.data, supernet, out, progress),
        )
    )


@stage_task("latency", agent=True)
def latency(run: Run, config: CommonConfig, device: str, supernet: Path, profiled: Output) -> Output:
    """The latency predictor of one device and its error on whole SubNets."""
    stage = Stage(
        name=f"latency/{device}",
        modules=("tasks.predict.validate",),
        settings=config.predict.model_dump(mode="json", exclude=NOT_OF_LATENCY),
        inputs=(run.devices.fingerprint(device), supernet, profiled.folder / tasks.profile.LUT_FOLDER),
        artifacts=(tasks.predict.validate.LATENCY_FILE, tasks.predict.validate.VALIDATION_FILE),
    )

    def body(out: Path, progress: Progress) -> dict[str, Any]:
        with run.devices.exclusive(device) as client:
            batch = config.device[device].batch
            return tasks.predict.validate.run(config.predict, supernet, profiled.folder, client, out, progress, batch)

    return finish(run.execute(stage, body))


@stage_task("resources")
def resources(run: Run, config: CommonConfig, device: str, supernet: Path, profiled: Output, timed: Output) -> Output:
    """Memory, multiply-accumulates, parameters and energy of SubNets on one device, on which `timed` measured some."""
    settings = config.resources_of(device)
    batch = config.device[device].batch
    stage = Stage(
        name=f"resources/{device}",
        modules=("tasks.predict.resources",),
        settings=settings.model_dump(mode="json") | ({} if batch == 1 else {"batch": batch}),
        inputs=(
            supernet,
            profiled.folder / tasks.profile.LUT_FOLDER,
            timed.folder / tasks.predict.validate.LATENCY_FILE,
            timed.folder / tasks.predict.validate.VALIDATION_FILE,
        ),
        artifacts=(tasks.predict.resources.RESOURCES_FILE,),
    )
    return finish(
        run.execute(
            stage,
            lambda out, _: tasks.predict.resources.run(settings, supernet, out, timed.folder, batch, profiled.folder),
        )
    )
