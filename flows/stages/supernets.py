"""The SuperNet: its base network, compiled, fine-tuned, and its operators."""

from pathlib import Path

import tasks.base
import tasks.compile
import tasks.enumerate
import tasks.finetune
from flows.config import RunConfig
from flows.inputs import data_key, model_key
from flows.run import Output, Run, Stage
from flows.stages.common import finish, stage_task

SUPERNET = "supernet"
NOT_IN_KEY = {"checkpoint_every_s", "restarts", "rendezvous"}


@stage_task("base")
def base(run: Run, config: RunConfig) -> Output:
    """The base network, trained when it has no weights."""
    stage = Stage(
        name="base",
        modules=("tasks.base", "tasks.finetune.worker"),
        settings=config.base.model_dump(mode="json", exclude=NOT_IN_KEY),
        inputs=(model_key(config.model), data_key(config.data)),
    )
    return finish(
        run.execute(stage, lambda out, progress: tasks.base.run(config.base, config.model, config.data, out, progress))
    )


@stage_task("compile")
def compile(run: Run, config: RunConfig, trained: Output | None) -> Output:
    """The SuperNet of the network; `trained`: the base stage (None: an .onnx file, or weights do not matter)."""
    weights = trained.folder / tasks.base.WEIGHTS_FILE if trained else None
    stage = Stage(
        name="compile",
        modules=("tasks.compile",),
        settings={"space": dict(config.space), **config.compile.model_dump(mode="json")},
        inputs=(model_key(config.model), data_key(config.data), *([weights] if weights else [])),
        artifacts=(SUPERNET,),
    )
    return finish(
        run.execute(
            stage,
            lambda out, _: tasks.compile.run(config.compile, config.model, config.data, weights, config.space, out),
        )
    )


@stage_task("finetune")
def finetune(run: Run, config: RunConfig, compiled: Output) -> Output:
    """The SuperNet, trained; registered as a model in MLflow."""
    supernet = compiled.folder / SUPERNET
    stage = Stage(
        name="finetune",
        modules=("tasks.finetune", "tasks.finetune.worker"),
        settings=config.finetune.model_dump(mode="json", exclude=NOT_IN_KEY),
        inputs=(data_key(config.data), supernet),
        artifacts=(SUPERNET, "history.jsonl"),
        registered=f"autotailor-{config.name}",
    )
    return finish(
        run.execute(
            stage,
            lambda out, progress: tasks.finetune.run(config.finetune, config.data, supernet, out, progress),
        )
    )


@stage_task("enumerate")
def enumerate(run: Run, supernet: Path, batch: int = 1) -> Output:
    """Every unique operator of a SuperNet, of a batch of samples."""
    stage = Stage(
        name="enumerate",
        modules=("tasks.enumerate",),
        settings={} if batch == 1 else {"batch": batch},
        inputs=(supernet,),
        artifacts=(tasks.enumerate.OPERATORS_FILE,),
    )
    return finish(run.execute(stage, lambda out, progress: tasks.enumerate.run(supernet, out, progress, batch)))
