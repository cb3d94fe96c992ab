"""The flow of a night. Its state says whether something regressed, so that an automation can wait for it."""

from collections.abc import Mapping
from typing import Any, cast

from prefect import State, flow
from prefect.states import Failed

from flows.config import FlowConfig
from flows.nightly.working import work_night

REGRESSED = "Regressed"
"""Name of the state of a flow run, and so of Prefect's event `prefect.flow-run.Regressed`."""


@flow(name="autotailor-nightly", flow_run_name="{config.name}", persist_result=False)
def nightly(config: FlowConfig) -> Any:
    """A run, compared with the night before: what changed, what got worse, trends. Ends as Regressed if something did."""
    result = work_night(config)
    return regressed(result, data=result) if result["regressed"] else result


def regressed(result: Mapping[str, Any], data: Mapping[str, Any] | None = None) -> State[Any]:
    """The failed state, with a name of its own, that a night ends in on which something regressed. data: what it gives back."""
    return Failed(name=REGRESSED, message=result["nightly"]["line"], data=data)


def night_of(config: FlowConfig) -> dict[str, Any]:
    """Run the flow; the result of its night, whether or not something regressed. The exception of one that fails is raised."""
    state = cast(State[dict[str, Any]], nightly(config, return_state=True))
    return cast(dict[str, Any], state.result(raise_on_failure=state.name != REGRESSED))
