"""MLflow's model registry: what a night has made is the candidate; what nothing is worse than is the champion."""

from collections.abc import Iterator
from pathlib import Path

from flows.config import RunConfig
from flows.run import Run
from flows.stages import SUPERNET
from flows.stages.spec import ALONE, Outputs
from tasks.artifacts import digest_of
from tasks.export.bundles import BUNDLE_FOLDER

CANDIDATE, CHAMPION = "candidate", "champion"
"""Aliases of the registry."""
RegisteredModel = tuple[str, str]
"""A registered model by name, and the digest of its version."""


def propose(run: Run, config: RunConfig, outputs: Outputs) -> list[RegisteredModel]:
    """Register what the night has made, each as the candidate of its name: the SuperNet, and the bundle of each device."""
    supernet = outputs["finetune"][ALONE].folder / SUPERNET
    models = [(f"autotailor-{config.name}", digest_of(supernet)), *_bundles(run, config, outputs)]
    for name, digest in models:
        run.tracker.point(name, digest, CANDIDATE)
    return models


def promote(run: Run, models: list[RegisteredModel]) -> None:
    """The night's models are the champions."""
    for name, digest in models:
        run.tracker.point(name, digest, CHAMPION)


def _bundles(run: Run, config: RunConfig, outputs: Outputs) -> Iterator[RegisteredModel]:
    for device in config.device:
        folder: Path = outputs["export"][device].folder
        if (folder / BUNDLE_FOLDER).is_dir():
            name, tracker = f"autotailor-{config.name}-{device}", run.tracker
            stage = tracker.start_stage(f"bundle/{device}", digest := digest_of(folder / BUNDLE_FOLDER))
            tracker.log_artifact(stage, folder, BUNDLE_FOLDER)
            tracker.register(name, stage, BUNDLE_FOLDER, digest, "Bundle: adaptive_runtime.load(folder) opens it")
            tracker.finish(stage)
            yield name, digest
