"""Steps of `prefect.yaml` when deployments are registered: checks of the worker's folder and of parameters, and new names."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from flows.config.validate import validate
from flows.operations.deployments import FORMS
from tasks.base.errors import UserError

VARIABLE = "AUTOTAILOR_DIR"
FLOWS = "flows/operations/deployments/deployed.py"
BAD_INPUT = 2


def check_folder(directory: str = "") -> dict[str, str]:
    """End Prefect's command with one line if deployments could not run: the variable is missing or names a wrong folder.

    directory: as in `prefect.yaml`; "{{ … }}" or empty if the variable is not set. A folder that does not exist on this machine
    may exist on the worker's.
    """
    if fault := fault_of(directory):
        print(f"autotailor: {VARIABLE}: {fault}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    return {"directory": directory}


def fault_of(directory: str) -> str | None:
    """The problem with the folder, and its remedy; None if there is no problem."""
    if not directory or "{{" in directory:
        return f"is not set; set it to the repository's folder, as export {VARIABLE}=$PWD there"
    folder = Path(directory)
    if not folder.is_absolute():
        return f"got '{directory}'; allowed: a whole path, since workers start elsewhere"
    if folder.exists() and not (folder / FLOWS).is_file():
        return f"'{directory}' has no {FLOWS}; allowed: the repository's folder"
    return None


OURS = re.compile(r"flows[/.]operations[/.]deployments[/.]deployed(?:\.py:|\.)(\w+)$")
"""The entrypoint of one of the flows here, with its function."""
ASKED_LATER = {"retarget_to": {"supernet": "supernet"}, "deploy_to": {"device": "onnxruntime"}}
"""Fields by function that a deployment without a schedule may leave to the user who starts a run."""
FILLED_IN_LATER = "{{"


def check_parameters(file: str) -> None:
    """End Prefect's command with one line if runs could not start: an unknown parameter, a wrong value or override.

    file: with the deployments, like `prefect.yaml`. Values that Prefect fills in from variables or blocks are not checked.
    """
    try:
        for where, function, parameters in _given(yaml.safe_load(Path(file).read_text())):
            _check(f"{file}: {where}", function, parameters)
    except UserError as error:
        print(f"autotailor: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)


def _given(content: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, function and parameters of each schedule, or of a deployment without one; only for our flows."""
    for deployment in content.get("deployments") or []:
        if (found := OURS.search(deployment.get("entrypoint") or "")) is None or found[1] not in FORMS:
            continue
        name, function = f"deployment '{deployment.get('name')}'", found[1]
        own, schedules = deployment.get("parameters") or {}, deployment.get("schedules") or []
        if not schedules:
            yield name, function, {**ASKED_LATER.get(function, {}), **own}
        for number, schedule in enumerate(schedules, 1):
            which = f"schedule '{schedule.get('slug') or number}'"
            yield f"{name}, {which}", function, {**own, **(schedule.get("parameters") or {})}


def _check(where: str, function: str, parameters: Mapping[str, Any]) -> None:
    """UserError for parameters that do not make a valid config."""
    if FILLED_IN_LATER in str(parameters):
        return
    try:
        validate(FORMS[function], parameters).config()
    except UserError as error:
        raise UserError(where, str(error), next_step="mend it there, and deploy again") from error


def replace_earlier(earlier: str, now: str) -> None:
    """Delete the deployment that has the name of an earlier version, unless it has schedules; one line says so."""
    with get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(earlier)
        except ObjectNotFound:
            return
        if not found.schedules:
            client.delete_deployment(found.id)
    left = (
        "has schedules: make them anew there, then 'prefect deployment delete' it" if found.schedules else "is deleted"
    )
    print(f"autotailor: deployment '{earlier}' is now '{now}'; the earlier one {left}", file=sys.stderr)
