"""Check of the parameters of deployments and their schedules, when they are registered: a step of `prefect.yaml`."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from flows.config.validate import validate
from flows.operations.deployments.configs import FORMS
from flows.operations.deployments.folder import BAD_INPUT
from tasks.base.errors import UserError

OURS = re.compile(r"flows[/.]operations[/.]deployments[/.]deployed(?:\.py:|\.)(\w+)$")
"""The entrypoint of one of the flows here, with its function."""
ASKED_LATER = {"adapt_to": {"supernet": "supernet"}, "deploy_to": {"device": "onnxruntime"}}
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
