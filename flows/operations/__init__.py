"""Work beside a run: deployments and nights, and the flow that deploys a bundle and the run time on a device."""

from prefect import flow, get_run_logger

from flows.config import DeployConfig
from tasks.base.pages.text import PlainConsole
from tasks.deploy import Deployed, run


@flow(name="autotailor-deploy", flow_run_name="{device}", persist_result=False)
def deploy(config: DeployConfig, device: str) -> Deployed:
    """Copy, install, check and start; the former release stays if something fails."""
    return put(config, device)


def put(config: DeployConfig, device: str) -> Deployed:
    """Deploy the bundle on the device, inside a flow run."""
    console, logger = PlainConsole(stderr=True), get_run_logger()

    def say(line: str) -> None:
        logger.info(line)
        console.print(f"{device}: {line}", markup=False, highlight=False, soft_wrap=True)

    return run(config.deploy, device, config.bundle_of(device), config.target_of(device), say)
