"""The flow that adapts an existing SuperNet to other devices, without training."""

from typing import Any

from prefect import flow

from flows.config import AdaptConfig, AdaptStage
from flows.pipeline.stages import ADAPTATION
from flows.pipeline.tailoring import tailor


@flow(name="autotailor-adapt", flow_run_name="{config.name}", persist_result=False)
def adapt(config: AdaptConfig, until: AdaptStage = "report") -> dict[str, Any]:
    """Enumerate, profile, predict, search, export and report for the SuperNet of folder `config.supernet`."""
    return tailor(ADAPTATION, config, until)
