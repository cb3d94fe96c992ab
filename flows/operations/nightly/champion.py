"""MLflow's model registry: a night's models are the candidates; a night without regressions becomes the champion."""

from collections.abc import Iterator
from pathlib import Path

from flows.config import FlowConfig, RunConfig
from flows.pipeline.run import Run
from flows.pipeline.stages.spec import Outputs, trained_supernet
from tasks.base.artifacts import digest_of
from tasks.export.bundles import BUNDLE_FOLDER

CANDIDATE, CHAMPION = "candidate", "champion"
"""Aliases in the registry."""
RegisteredModel = tuple[str, str]
"""Name of a registered model, and the digest of its version."""


def propose(run: Run, config: FlowConfig, outputs: Outputs) -> list[RegisteredModel]:
    """Register the night's models as candidates of their names: the SuperNet, and the bundle of each device.

    A given SuperNet is not registered, since the night has not made it.
    """
    models = list(_bundles(run, config, outputs))
    if isinstance(config, RunConfig):
        models.insert(0, (f"autotailor-{config.name}", digest_of(trained_supernet(config, outputs))))
    for name, digest in models:
        run.tracker.point(name, digest, CANDIDATE)
    return models


def promote(run: Run, models: list[RegisteredModel]) -> None:
    """Make the night's models the champions."""
    for name, digest in models:
        run.tracker.point(name, digest, CHAMPION)


def _bundles(run: Run, config: FlowConfig, outputs: Outputs) -> Iterator[RegisteredModel]:
    for device in config.device:
        folder: Path = outputs["export"][device].folder
        if (folder / BUNDLE_FOLDER).is_dir():
            name, tracker = f"autotailor-{config.name}-{device}", run.tracker
            stage = tracker.start_stage(f"bundle/{device}", digest := digest_of(folder / BUNDLE_FOLDER))
            tracker.log_artifact(stage, folder, BUNDLE_FOLDER)
            tracker.register(name, stage, BUNDLE_FOLDER, digest, "Bundle: adaptive_runtime.load(folder) opens it")
            tracker.finish(stage)
            yield name, digest
