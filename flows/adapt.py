"""The flow that adapts an existing SuperNet to other devices, without training."""

from typing import Any

from prefect import flow

from flows.config import AdaptConfig
from flows.session import open_run
from flows.tailoring import DeviceStage, tailor


@flow(name="autotailor-adapt", flow_run_name="{config.name}", persist_result=False)
def adapt(config: AdaptConfig, until: DeviceStage = "report") -> dict[str, Any]:
    """Enumerate, profile, predict, search, export and report for the SuperNet of folder `config.supernet`."""
    with open_run(config, until) as run:
        return tailor(run, config, config.supernet, config.supernet, until, {})
