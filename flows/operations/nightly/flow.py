"""The flow of a night. Its state shows whether something regressed, so that an automation can wait for it."""

from collections.abc import Mapping
from typing import Any, cast

from prefect import State, flow
from prefect.states import Failed

from flows.config import FlowConfig
from flows.operations.nightly.working import work_night

REGRESSED = "Regressed"
"""Name of the flow run's state, and thereby of Prefect's event `prefect.flow-run.Regressed`."""


@flow(name="autotailor-nightly", flow_run_name="{config.name}", persist_result=False)
def nightly(config: FlowConfig) -> Any:
    """A run, compared with the night before: changes, regressions, trends. Ends as Regressed if something regressed."""
    result = work_night(config)
    return regressed(result, data=result) if result["regressed"] else result


def regressed(result: Mapping[str, Any], data: Mapping[str, Any] | None = None) -> State[Any]:
    """The failed state, with its own name, of a night on which something regressed. data: the flow's result."""
    return Failed(name=REGRESSED, message=result["nightly"]["line"], data=data)


def night_of(config: FlowConfig) -> dict[str, Any]:
    """Run the flow and return its result, whether or not something regressed. The exception of a failed night is raised."""
    state = cast(State[dict[str, Any]], nightly(config, return_state=True))
    return cast(dict[str, Any], state.result(raise_on_failure=state.name != REGRESSED))
